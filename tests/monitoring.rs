//! The dashboard and the alert rules of scripts/monitoring, loaded by a real Prometheus that scrapes a real mount.

mod common;

use common::eventually;
use common::mounted::Mounted;
use common::source::{Resource, Source};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/monitoring").join(name)
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program that must succeed prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The queries of the dashboard's panels, each with its title.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_slice(&fs::read(file("dashboard.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    panels.iter().flat_map(of_panel).collect()
}

/// A Prometheus that scrapes `target` each second, and its address.
fn prometheus(scratch: &Path, target: &str) -> (Running, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: resyncfs, static_configs: [{{targets: ['{target}']}}]}}]\n",
        file("alerts.yml").display()
    );
    fs::write(scratch.join("prometheus.yml"), configuration).unwrap();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", scratch.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", scratch.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let running = Running(command.spawn().expect("prometheus is installed (scripts/test does it)"));
    (running, format!("http://127.0.0.1:{port}/api/v1"))
}

fn asked(address: &str, path: &str, query: Option<&str>) -> Option<Value> {
    let mut command = Command::new("curl");
    command.args(["-sS", "--get"]);
    if let Some(query) = query {
        command.arg("--data-urlencode").arg(format!("query={query}"));
    }
    let answer = command.arg(format!("{address}/{path}")).output().unwrap();
    let answer: Value = serde_json::from_slice(&answer.stdout).ok()?;
    (answer["status"] == "success").then(|| answer["data"].clone())
}

#[test]
fn a_real_prometheus_answers_rules_and_dashboard() {
    let source = Source::start();
    source.put("a", Resource::new("Sir, the beacon stands.\n"));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,metrics-listen=127.0.0.1:0");
    let socket = printed(
        "getfattr",
        &["--absolute-names", "--only-values", "-n", "user.resyncfs.control", mounted.path().to_str().unwrap()],
    );
    let status: Value =
        serde_json::from_str(&printed("curl", &["-sS", "--unix-socket", &socket, "http://localhost/status"])).unwrap();
    fs::read(mounted.join("a")).unwrap();
    let rules = file("alerts.yml");
    let scratch = tempfile::tempdir().unwrap();

    let checked = printed("promtool", &["check", "rules", rules.to_str().unwrap()]);
    let (_running, address) = prometheus(scratch.path(), status["metrics"].as_str().unwrap());

    assert!(checked.contains("SUCCESS: 9 rules found"), "{checked}");
    for (title, query) in queries() {
        let query = query.replace("$instance", ".*").replace("$__rate_interval", "30s");
        eventually(&format!("{title}: {query}"), || {
            asked(&address, "query", Some(&query)).is_some_and(|data| !data["result"].as_array().unwrap().is_empty())
        });
    }
    eventually("each rule is evaluated", || {
        let groups = asked(&address, "rules", None).unwrap()["groups"].clone();
        groups[0]["rules"].as_array().unwrap().iter().all(|rule| rule["health"] == "ok")
    });
    // A rule about a metric that does not exist is evaluated too, and never fires.
    let exported = printed("curl", &["-sS", &format!("http://{}/metrics", status["metrics"].as_str().unwrap())]);
    for name in fs::read_to_string(rules).unwrap().split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let is_metric = name.starts_with("resyncfs_");
        assert!(!is_metric || exported.lines().any(|line| line.starts_with(name)), "{name} is not exported");
    }
}
