# One image for one service, with nothing in it but its static binary:
#   docker build --build-arg SERVICE=watcher --tag ghcr.io/tekton-coscheduler/watcher:0.1.0 .

FROM rust:1.95.0-alpine3.22 AS build
# The C compiler is for ring and for linking; what it is used for is pinned by Cargo.lock.
# hadolint ignore=DL3018
RUN apk add --no-cache build-base
# The image's own toolchain is the pinned one, without the components that only developers need.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY deploy deploy
COPY integration-tests integration-tests
COPY proto proto
ARG SERVICE
# On Alpine a binary is linked with musl, statically; the last line makes sure of it.
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
# Nobody in particular; the Deployments say the same.
USER 65532:65532
ENTRYPOINT ["/service"]
