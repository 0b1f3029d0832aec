//! `GET /metrics`, on the control socket and on a port (`metrics-listen=`). Every user of this machine may read the port, and other
//! machines where it is not on a loopback address. So it answers nothing else, and its connections, time and memory are bounded.

use super::reply::{self, failure};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at once; further ones wait in the system's queue.
const CONNECTIONS: usize = 16;

/// Time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after the system refused a connection: another try at once would only spin.
const REFUSED: Duration = Duration::from_millis(100);

/// The metrics of a mount in the text format of Prometheus. Must not wait.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The address of `HOST:PORT`: HOST is `localhost`, or an address that is written out. A name could lead anywhere, and a port alone
/// would reach further than a person may expect. An error is the reason.
pub fn listening(listen: &str) -> Result<SocketAddr, String> {
    let written =
        listen.strip_prefix("localhost:").map_or_else(|| listen.to_owned(), |port| format!("127.0.0.1:{port}"));
    written.parse().map_err(|_| {
        format!(
            "{listen:?} is not an address and a port such as 127.0.0.1:9464. 0.0.0.0:9464 listens on all addresses: everybody who \
             reaches the port then sees which hosts are asked and which programs read"
        )
    })
}

/// Answers `GET /metrics` and nothing else on `listener`, until the future is dropped.
pub async fn serve_metrics(listener: TcpListener, metrics: Metrics) {
    let refused = |status| async move || failure(status, "only GET /metrics is served here", None);
    let router = Router::new()
        .route("/metrics", get(async move || reply::metrics(metrics())))
        .fallback(refused(StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(refused(StatusCode::METHOD_NOT_ALLOWED));
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed.
        let Ok(connection) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    converse(stream, router).await;
                    drop(connection);
                });
            }
            Err(cause) => {
                tracing::debug!(%cause, "a connection for metrics failed");
                tokio::time::sleep(REFUSED).await;
            }
        }
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, router: Router) {
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that is too slow or breaks HTTP gets no answer.
    let _ = tokio::time::timeout(PATIENCE, conversation).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_only_when_it_is_written_out() {
        for (listen, taken) in [
            ("127.0.0.1:9464", true),
            ("[::1]:0", true),
            ("localhost:9464", true),
            ("0.0.0.0:9464", true),
            ("[::]:9464", true),
            ("example.org:9464", false),
            ("localhost", false),
            (":9464", false),
            ("9464", false),
        ] {
            assert_eq!(listening(listen).is_ok(), taken, "{listen}");
        }
    }
}
