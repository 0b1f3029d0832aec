//! A hub made by somebody else's library: Flask-WebSub.

use super::{eventually, venv_program};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The hub, in a process of its own that ends with its test.
pub struct FlaskHub {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl FlaskHub {
    /// On a free port.
    pub fn start() -> FlaskHub {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/websub_hub.py");
        let mut process = Command::new(venv_program("WEBSUB_VENV", "flask-websub-0.4.1", "python"))
            .arg(script)
            .arg(folder.path())
            .env("no_proxy", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.path().join("said")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("the hub did not start: {said}"));
        FlaskHub { process, port, folder }
    }

    /// `http://127.0.0.1:PORT/hub`
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hub", self.port)
    }

    /// Where a Source posts its own notifications.
    pub fn relay_url(&self) -> String {
        format!("http://127.0.0.1:{}/relay", self.port)
    }

    /// Every callback that is subscribed to `topic`, as the hub's own database has it.
    pub fn subscribers(&self, topic: &str) -> Vec<String> {
        let script = "import sqlite3, sys\n\
                      rows = sqlite3.connect(sys.argv[1]).execute('select callback_url from hub where topic_url = ?', sys.argv[2:])\n\
                      print('\\n'.join(row[0] for row in rows))";
        let output = Command::new("python3")
            .args(["-c", script])
            .arg(self.folder.path().join("hub.sqlite"))
            .arg(topic)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until somebody is subscribed to `topic`.
    pub fn wait_for_subscriber(&self, topic: &str) {
        eventually("somebody subscribes to the hub", || !self.subscribers(topic).is_empty());
    }
}

impl Drop for FlaskHub {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
            eprintln!("the hub said:\n{said}");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
