//! A real Prometheus that scrapes the services of a stack.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use testbed::services::Service;
use testbed::{FreePorts, ProcessGroup, default_folder};

use crate::Scene;
use crate::look::LIMIT;
use crate::metrics::get;

/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(200);

/// Makes parallel tests install Prometheus only once.
static INSTALLING: Mutex<()> = Mutex::new(());

/// A Prometheus that scrapes each service once a second. It ends when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    address: String,
    _ports: FreePorts<1>,
    _processes: ProcessGroup,
}

impl Prometheus {
    /// Starts Prometheus with these rule groups, and waits until it has scraped every service.
    ///
    /// # Errors
    ///
    /// Prometheus cannot be installed, or has not scraped every service in time.
    pub async fn start(scene: &Scene<'_>, groups: &Value) -> anyhow::Result<Self> {
        let program = tokio::task::spawn_blocking(program).await??;
        let folder = scene.stack.bed.dir().join("prometheus");
        fs::create_dir(&folder)?;
        let scraped = Service::ALL.map(|service| {
            let address = scene.stack.services.http_address(service);
            let target = address.trim_start_matches("http://").to_owned();
            json!({"targets": [target], "labels": {"service": service.name()}})
        });
        // JSON is YAML.
        let write = |name: &str, content: Value| fs::write(folder.join(name), content.to_string());
        write("rules.yml", json!({"groups": groups}))?;
        write(
            "prometheus.yml",
            json!({
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yml"],
                "scrape_configs": [{"job_name": "coscheduler", "static_configs": scraped}],
            }),
        )?;
        let ports = FreePorts::<1>::find()?;
        let address = format!("127.0.0.1:{}", ports.ports[0]);
        let mut command = Command::new(program);
        command
            .arg(format!(
                "--config.file={}",
                folder.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(&folder);
        let processes = ProcessGroup::start(&folder)?;
        processes.spawn("prometheus", command)?;
        let prometheus = Self {
            address: format!("http://{address}"),
            _ports: ports,
            _processes: processes,
        };
        let all = Service::ALL.len() as f64;
        prometheus.until("sum(up)", |up| up == Some(all)).await?;
        Ok(prometheus)
    }

    /// Field `data` in the answer of Prometheus' API.
    ///
    /// # Errors
    ///
    /// Prometheus returns an error, for example because a query is malformed.
    pub async fn api(&self, path: &str) -> anyhow::Result<Value> {
        let text = get(&format!("{}/api/v1/{path}", self.address)).await?;
        let mut answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].take())
    }

    /// The series in the result of a query.
    ///
    /// # Errors
    ///
    /// As [`Self::api`].
    pub async fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let data = self.api(&format!("query?query={}", encoded(query))).await;
        let mut data = data.with_context(|| format!("query {query}"))?;
        Ok(serde_json::from_value(data["result"].take())?)
    }

    /// Waits until `is` is true for the value of a query. The value is `None` if the query has no result.
    ///
    /// # Errors
    ///
    /// `is` is not true in time. The error contains the last value.
    pub async fn until(&self, query: &str, is: impl Fn(Option<f64>) -> bool) -> anyhow::Result<()> {
        let mut last = None;
        let waited = tokio::time::timeout(LIMIT, async {
            loop {
                // Perhaps Prometheus does not listen yet.
                if let Ok(series) = self.query(query).await {
                    let value = series.first().and_then(|one| one["value"][1].as_str());
                    last = value.and_then(|value| value.parse().ok());
                    if is(last) {
                        return;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        let held = waited.await;
        held.with_context(|| format!("{query} is {last:?}"))
    }
}

/// The path of Prometheus: the program on `PATH`, or otherwise the program of Debian's package, which is downloaded at the first
/// use.
fn program() -> anyhow::Result<PathBuf> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let on_path = Command::new("prometheus").arg("--version").output();
    if on_path.is_ok_and(|output| output.status.success()) {
        return Ok("prometheus".into());
    }
    let tools = default_folder()?;
    let installed = tools.join("prometheus");
    let program = installed.join("usr/bin/prometheus");
    if program.is_file() {
        return Ok(program);
    }
    let part = tools.join(format!("prometheus-{}", std::process::id()));
    let root = part.join("root");
    fs::create_dir_all(&root)?;
    let act =
        "failed to install Prometheus; put it on PATH, or use a system with apt-get and dpkg-deb";
    call(&part, "apt-get", &["download", "prometheus"]).context(act)?;
    let package = fs::read_dir(&part)?
        .filter_map(Result::ok)
        .find_map(|file| {
            let name = file.file_name().into_string().ok()?;
            name.ends_with(".deb").then_some(name)
        });
    let package = package.context("apt-get downloaded no package")?;
    call(&part, "dpkg-deb", &["--extract", &package, "root"]).context(act)?;
    fs::rename(&root, &installed)?;
    fs::remove_dir_all(&part)?;
    Ok(program)
}

fn call(folder: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("failed to start {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A text with percent-encoding, for the query of a URL.
fn encoded(text: &str) -> String {
    let bytes = text.bytes();
    let encoded = bytes.map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    });
    encoded.collect()
}
