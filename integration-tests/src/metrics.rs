//! Reads the services' `/metrics`.

use anyhow::{Context as _, ensure};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kube::client::Body;

/// The metrics of the service at the URL `address`, as text.
///
/// # Errors
///
/// The service does not answer with status 200.
pub async fn scrape(address: &str) -> anyhow::Result<String> {
    get(&format!("{address}/metrics")).await
}

/// The text at `url`.
///
/// # Errors
///
/// As [`scrape`].
pub async fn get(url: &str) -> anyhow::Result<String> {
    let request = http::Request::get(url).body(Body::empty())?;
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client
        .request(request)
        .await
        .with_context(|| format!("failed to get {url}"))?;
    ensure!(
        answer.status() == StatusCode::OK,
        "{url} answered {}",
        answer.status()
    );
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}

/// The sum of all samples of a metric that have these labels; 0 if there are none.
pub fn sum(metrics: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    metrics
        .lines()
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (metric, given) = series.split_once('{').unwrap_or((series, ""));
            let has = |(key, value): &(&str, &str)| {
                let label = format!("{key}=\"{value}\"");
                given
                    .trim_end_matches('}')
                    .split(',')
                    .any(|given| given == label)
            };
            let wanted = metric == name && labels.iter().all(has);
            wanted.then(|| value.parse().unwrap_or(0.0))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let metrics = "# TYPE a counter\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"1\",y=\"3\"} 4\na_total{x=\"11\"} 5\nb_total 6\n";
        assert_eq!(sum(metrics, "a_total", &[("x", "1")]), 7.0);
        assert_eq!(sum(metrics, "a_total", &[("x", "1"), ("y", "3")]), 4.0);
        assert_eq!(sum(metrics, "b_total", &[]), 6.0);
        assert_eq!(sum(metrics, "b_total", &[("x", "1")]), 0.0);
        assert_eq!(sum(metrics, "a", &[]), 0.0);
    }
}
