//! The real nginx over a folder, with a Source's documents made by the independent library `resync` 2.0.1.

use super::random::Random;
use super::{eventually, venv_program};
use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Folder names of the test collection, awkward on purpose. `?`, `#` and `%` are missing: `resync` writes names into URIs unescaped.
const FOLDERS: &[&str] =
    &["plain", "with blank", "ünï/cödé", "nested/a/b/c/d", "brackets [1] (2) {3}", "quo'te & \"amp\"", "trailing."];

/// A Source on a port of this machine.
pub struct Nginx {
    scratch: tempfile::TempDir,
    process: Child,
    port: u16,
    scheme: &'static str,
    host: String,
    index: Option<u16>,
}

/// How a collection is served.
struct Manner<'a> {
    scheme: &'static str,
    /// By which name the Source calls itself.
    host: &'a str,
    /// What is listened on.
    address: &'a str,
    /// What follows `listen`'s address.
    listen: &'a str,
    /// Further directives of a server.
    demands: &'a str,
    /// Whether another port shows folders as pages.
    is_indexed: bool,
}

const PLAIN: Manner<'static> =
    Manner { scheme: "http", host: "localhost", address: "127.0.0.1", listen: "", demands: "", is_indexed: false };

impl Nginx {
    /// Serves a fresh collection of `files` files over HTTP/1.1.
    pub fn serving(files: u64, build_arguments: &[&str]) -> Nginx {
        Nginx::start(&PLAIN, build_arguments, |root| make_collection(root, files))
    }

    /// The same with names that need no escapes.
    pub fn serving_plain_names(files: u64) -> Nginx {
        Nginx::start(&PLAIN, &[], |root| make_plain_collection(root, files))
    }

    /// What `make` writes, on all addresses and by one of them; [`Nginx::index_url`] shows its folders as pages.
    pub fn serving_at(address: &str, make: impl Fn(&Path)) -> Nginx {
        let manner = Manner { host: address, address: "0.0.0.0", is_indexed: true, ..PLAIN };
        Nginx::start(&manner, &[], make)
    }

    /// What `make` writes, on all addresses and by one of them, over TLS and HTTP/2.
    pub fn serving_tls_at(address: &str, make: impl Fn(&Path)) -> Nginx {
        let manner = Manner { scheme: "https", host: address, address: "0.0.0.0", listen: " ssl http2", ..PLAIN };
        Nginx::start(&manner, &[], make)
    }

    /// The same for HTTP/2 alone: a client of another version is asked to upgrade.
    pub fn serving_http2_alone_at(address: &str, make: impl Fn(&Path)) -> Nginx {
        let demands = "if ($server_protocol != HTTP/2.0) { return 426; }";
        let manner =
            Manner { scheme: "https", host: address, address: "0.0.0.0", listen: " ssl http2", demands, ..PLAIN };
        Nginx::start(&manner, &[], make)
    }

    /// The same by a server that knows no ranges.
    pub fn serving_without_ranges(files: u64) -> Nginx {
        let manner = Manner { demands: "max_ranges 0;", ..PLAIN };
        Nginx::start(&manner, &[], |root| make_collection(root, files))
    }

    /// The same over TLS and HTTP/2, with a certificate of a private CA.
    pub fn serving_tls(files: u64) -> Nginx {
        let manner = Manner { scheme: "https", listen: " ssl http2", ..PLAIN };
        Nginx::start(&manner, &[], |root| make_collection(root, files))
    }

    /// The same over TLS and HTTP/1.1.
    pub fn serving_tls_without_http2(files: u64) -> Nginx {
        let manner = Manner { scheme: "https", listen: " ssl", ..PLAIN };
        Nginx::start(&manner, &[], |root| make_collection(root, files))
    }

    /// Over TLS and HTTP/2 for those alone who show a certificate of that CA: [`Nginx::client_certificate`].
    pub fn serving_tls_to_clients(files: u64) -> Nginx {
        let manner = Manner { scheme: "https", listen: " ssl http2", demands: "ssl_verify_client on;", ..PLAIN };
        Nginx::start(&manner, &[], |root| make_collection(root, files))
    }

    /// Serves a folder as it is, documents of a Source and all, at a port that was free when it was chosen.
    pub fn serving_folder(folder: &Path, port: u16) -> Nginx {
        let make = |files: &Path| std::os::unix::fs::symlink(folder, files).unwrap();
        let nginx = Nginx::spawn(&PLAIN, port, make);
        nginx.wait_until_it_listens();
        nginx
    }

    /// Serves a folder by WebDAV, for reading and writing.
    pub fn serving_webdav(folder: &Path) -> Nginx {
        let make = |files: &Path| std::os::unix::fs::symlink(folder, files).unwrap();
        let manner = Manner { demands: "dav_methods PUT DELETE MKCOL; create_full_put_path on;", ..PLAIN };
        let nginx = Nginx::spawn(&manner, free_port(), make);
        nginx.wait_until_it_listens();
        nginx
    }

    fn start(manner: &Manner<'_>, build_arguments: &[&str], make: impl Fn(&Path)) -> Nginx {
        let nginx = Nginx::spawn(manner, free_port(), make);
        nginx.build(build_arguments);
        nginx.wait_until_it_listens();
        nginx
    }

    fn wait_until_it_listens(&self) {
        eventually("nginx listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    fn spawn(manner: &Manner<'_>, port: u16, make: impl Fn(&Path)) -> Nginx {
        let Manner { scheme, host, address, listen, demands, is_indexed } = *manner;
        let scratch = tempfile::Builder::new().prefix("resyncfs-nginx-").tempdir().unwrap();
        let root = scratch.path();
        // nginx's workers run as another user.
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        make(&root.join("files"));
        let mut tls = demands.to_owned();
        if scheme == "https" {
            make_certificates(root, host);
            tls = format!(
                "ssl_certificate {0}/server.pem; ssl_certificate_key {0}/server.key; ssl_client_certificate {0}/ca.pem; {demands}",
                root.display()
            );
        }
        let index = is_indexed.then(free_port);
        let index_server = index.map_or(String::new(), |index| {
            format!("server {{ listen {address}:{index}; autoindex on; root {}/files; }}", root.display())
        });
        let config = format!(
            "daemon off; pid {0}/pid; error_log {0}/error.log; worker_processes 1; events {{ worker_connections 1024; }}
             http {{
               sendfile on; tcp_nopush on;
               log_format requests '$remote_addr - - [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $connection $ssl_session_reused';
               access_log {0}/access.log requests;
               client_body_temp_path {0}/t1; proxy_temp_path {0}/t2; fastcgi_temp_path {0}/t3; uwsgi_temp_path {0}/t4; scgi_temp_path {0}/t5;
               default_type application/octet-stream;
               server {{
                 listen {address}:{port}{listen}; {tls}
                 autoindex off;
                 location / {{ root {0}/files; }}
                 location /documents/ {{ alias {0}/documents/; types {{ application/xml xml; }} }}
                 location = /.well-known/resourcesync {{ alias {0}/documents/description.xml; types {{ }} default_type application/xml; }}
               }}
               {index_server}
             }}",
            root.display()
        );
        fs::write(root.join("nginx.conf"), config).unwrap();
        let process = Command::new("nginx")
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx is installed (scripts/test does it)");
        Nginx { scratch, process, port, scheme, host: host.to_owned(), index }
    }

    /// Writes Resource List, Capability List and Source Description again with `resync-build`.
    pub fn build(&self, arguments: &[&str]) {
        let documents = self.scratch.path().join("documents");
        let fresh = self.scratch.path().join("fresh");
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir(&fresh).unwrap();
        let base = self.url();
        let mapping = format!("{base}={}", self.files().display());
        let up = format!("--capabilitylist-link={base}documents/capabilitylist.xml");
        // An index names its parts by the mapping, so the lists are written as if below the Source's root.
        let list = fresh.join("resourcelist.xml");
        let list_mapping = format!("{base}documents/={}", fresh.display());
        let mut resource_list =
            vec!["--write-resourcelist", "--outfile", list.to_str().unwrap(), "--hash", "sha-256", &up];
        resource_list.extend(arguments);
        let files = self.files();
        resource_list.extend(["--paths", files.to_str().unwrap(), &mapping, &list_mapping]);
        resync_build(&resource_list);
        let capabilities = format!("resourcelist={base}documents/resourcelist.xml");
        let capability_list = fresh.join("capabilitylist.xml");
        resync_build(&["--write-capabilitylist", &capabilities, "--outfile", capability_list.to_str().unwrap()]);
        let list_uri = format!("{base}documents/capabilitylist.xml");
        let description = fresh.join("description.xml");
        resync_build(&["--write-sourcedescription", &list_uri, "--outfile", description.to_str().unwrap()]);
        let _ = fs::remove_dir_all(&documents);
        fs::rename(&fresh, &documents).unwrap();
    }

    /// Publishes the files as packages of at most `most` of them, made by `resync`, in a Resource Dump; and in the Resource
    /// List of before, where `is_listed`.
    pub fn write_dump(&self, most: usize, is_listed: bool) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/write_dump.py");
        let mut command = Command::new(resync_program("python3"));
        command.arg(script).arg(self.files()).arg(self.documents()).args([&self.url(), &most.to_string()]);
        if is_listed {
            command.arg(format!("{}documents/resourcelist.xml", self.url()));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Removes the published files; lists and dumps are still there.
    pub fn forget_files(&self) {
        fs::remove_dir_all(self.files()).unwrap();
        fs::create_dir(self.files()).unwrap();
    }

    /// The folder of lists and dumps, published as `documents/`.
    pub fn documents(&self) -> PathBuf {
        self.scratch.path().join("documents")
    }

    /// Has documents written by the library's classes: `orders` as `publish.py` takes them.
    pub fn publish(&self, orders: &serde_json::Value) {
        let mut writing = Command::new(resync_program("python"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/publish.py"))
            .args([self.files(), self.scratch.path().join("documents")])
            .arg(self.url())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        serde_json::to_writer(writing.stdin.take().unwrap(), orders).unwrap();
        assert!(writing.wait().unwrap().success(), "the library wrote no {orders}");
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The Source's root.
    pub fn url(&self) -> String {
        format!("{}://{}:{}/", self.scheme, self.host, self.port)
    }

    /// The published folder's pages, where they are served.
    pub fn index_url(&self) -> Option<String> {
        self.index.map(|index| format!("http://{}:{index}/", self.host))
    }

    /// The folder that is published.
    pub fn files(&self) -> PathBuf {
        self.scratch.path().join("files")
    }

    /// The certificate that signed the server's, PEM.
    pub fn ca(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    /// A client's certificate and key, PEM.
    pub fn client_certificate(&self) -> PathBuf {
        self.scratch.path().join("client-both.pem")
    }

    /// The lines of the access log, in the combined format; behind it the connection's number, and `r` where its TLS session was
    /// resumed.
    pub fn access_log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.scratch.path().join("access.log")).unwrap_or_default();
        log.lines().map(ToOwned::to_owned).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SAFETY: kill(2) has no memory preconditions; the process is this test's own child, not yet waited for.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        let _ = self.process.wait();
    }
}

/// A program of the library `resync`.
pub fn resync_program(name: &str) -> PathBuf {
    venv_program("RESYNC_VENV", "resync-2.0.1", name)
}

fn resync_build(arguments: &[&str]) {
    let output = Command::new(resync_program("resync-build")).args(arguments).output().unwrap();
    assert!(output.status.success(), "resync-build: {}", String::from_utf8_lossy(&output.stderr));
}

/// A port of loopback that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn make_plain_collection(root: &Path, count: u64) {
    let mut random = Random::new(8);
    for number in 0..count {
        let folder = root.join(format!("f{}", number % 10));
        fs::create_dir_all(&folder).unwrap();
        let size = random.below(20_000) as usize;
        fs::write(folder.join(format!("file-{number}.txt")), random.bytes(size)).unwrap();
    }
}

/// `count` files of many sizes, one of them above the bound up to which files are verified before the first byte.
fn make_collection(root: &Path, count: u64) {
    let mut random = Random::new(7);
    for number in 0..count {
        let folder = root.join(FOLDERS[(number % FOLDERS.len() as u64) as usize]);
        fs::create_dir_all(&folder).unwrap();
        let name = match number % 5 {
            0 => format!("file {number}, with = signs; and + more.txt"),
            1 => format!("{number}-Übergröße.dat"),
            2 => format!("e\u{301}-nfd-{number}"),
            3 => format!("{number}.tar.gz"),
            _ => format!("~{number}!$@_-.html"),
        };
        let size = match number % 7 {
            0 => 0,
            1 => 1 + random.below(100),
            2..=5 => random.below(20_000),
            _ => random.below(200_000),
        };
        fs::write(folder.join(name), random.bytes(size as usize)).unwrap();
    }
    fs::write(root.join("big.bin"), random.bytes((20 << 20) + 12_345)).unwrap();
    // One instant for all would hide a wrong mtime.
    let output = Command::new("bash")
        .arg("-c")
        .arg("n=0; find . -type f -print0 | sort -z | while IFS= read -r -d '' f; do touch -d \"2020-01-01 UTC + $n minutes\" \"$f\"; n=$((n+7)); done")
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Of a private CA: the server's, for loopback and for `host`, and a client's.
fn make_certificates(folder: &Path, host: &str) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj '/CN=Test CA' -keyout ca.key -out ca.pem \
                  -addext basicConstraints=critical,CA:TRUE && \
                  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=localhost' -keyout server.key -out server.csr && \
                  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1'\"$HOST_TOO\" > ext && \
                  openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.pem && \
                  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=reader' -keyout client.key -out client.csr && \
                  printf 'subjectAltName=DNS:reader\nextendedKeyUsage=clientAuth' > client-ext && \
                  openssl x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile client-ext -out client.pem && \
                  cat client.pem client.key > client-both.pem && chmod 600 client-both.pem";
    let host_too = if host.parse::<IpAddr>().is_ok() { format!(",IP:{host}") } else { String::new() };
    let mut openssl = Command::new("bash");
    let output = openssl.args(["-c", script]).env("HOST_TOO", host_too).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}
