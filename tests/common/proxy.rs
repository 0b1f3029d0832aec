//! A forward proxy as companies have them: whole URIs for http, CONNECT for https.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The proxy. It resolves `repo.example` to this machine, as a proxy may know names that its users do not.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

/// A host that the proxy alone can reach.
pub const BEHIND: &str = "repo.example";

impl Proxy {
    /// A proxy on a free port of loopback.
    pub fn start() -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let proxy = Proxy { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // A connection that breaks is the business of its two ends.
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        proxy
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The request lines so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn serve(&self, client: TcpStream) -> Option<()> {
        let mut reading = BufReader::new(client.try_clone().ok()?);
        let mut line = String::new();
        reading.read_line(&mut line).ok()?;
        self.asked.lock().unwrap().push(line.trim().to_owned());
        let mut words = line.split_ascii_whitespace();
        let (method, target) = (words.next()?, words.next()?);
        let mut head = String::new();
        while reading.read_line(&mut head).ok()? > 2 {}
        let (authority, start) = match target.strip_prefix("http://") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (authority, format!("{method} {path} HTTP/1.1\r\n{head}"))
            }
            None => (target, String::new()),
        };
        let port: u16 = authority.rsplit_once(':')?.1.parse().ok()?;
        let server = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let mut client = client;
        if start.is_empty() {
            client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
        }
        (&server).write_all(start.as_bytes()).ok()?;
        let mut upstream = server.try_clone().ok()?;
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut reading as &mut dyn Read, &mut upstream);
            let _ = upstream.shutdown(Shutdown::Write);
        });
        let mut answer = BufReader::new(&server);
        if !start.is_empty() {
            // One request a connection, so that each is seen here.
            let mut status = String::new();
            answer.read_line(&mut status).ok()?;
            client.write_all(format!("{status}Connection: close\r\n").as_bytes()).ok()?;
        }
        let _ = std::io::copy(&mut answer, &mut client);
        let _ = client.shutdown(Shutdown::Both);
        Some(())
    }
}
