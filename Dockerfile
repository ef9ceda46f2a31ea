# Builds the image of one service. The image contains only the service's static binary:
#   docker build --build-arg SERVICE=watcher --tag ghcr.io/tekton-coscheduler/watcher:0.1.0 .

FROM rust:1.95.0-alpine3.22 AS build
# ring needs a C compiler, and so does the linking of the binary. The version of this package need not be pinned.
# hadolint ignore=DL3018
RUN apk add --no-cache build-base
# This image has the same version of Rust as rust-toolchain.toml, without the components that only developers need.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY deploy deploy
COPY integration-tests integration-tests
COPY proto proto
ARG SERVICE
# On Alpine, cargo links a binary statically with musl. The last command fails if the binary needs a dynamic loader.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked --package "${SERVICE}" --bin "${SERVICE}" \
    && cp "target/release/${SERVICE}" /service \
    && readelf --program-headers /service > /headers \
    && ! grep INTERP /headers

FROM scratch
ARG SERVICE
LABEL org.opencontainers.image.title="${SERVICE}" \
      org.opencontainers.image.source="https://github.com/tekton-coscheduler/tekton-coscheduler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /service /service
# An unprivileged user. The Deployments set the same user.
USER 65532:65532
ENTRYPOINT ["/service"]
