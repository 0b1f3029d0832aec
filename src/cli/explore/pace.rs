//! The speed of the host of a few resources, and the content of its answers.

use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::platform::milliseconds;
use crate::source::http::{Client, HostTraffic, Method, Request, Response};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Deadline of each request.
const DEADLINE: Duration = Duration::from_secs(10);

/// The answers to HEAD requests for a few resources.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MeasuredPace {
    /// Requests made.
    pub asked: usize,
    /// Requests answered.
    pub answered: usize,
    /// Answers of the type text/html.
    pub pages: usize,
    /// The addresses of these answers.
    #[serde(skip)]
    pub pages_at: Vec<Uri>,
    /// Answers with a size.
    pub sized: usize,
    /// Answers by their validators.
    pub validators: ValidatorCounts,
    /// Median time to an answer.
    #[serde(rename = "median_ms", serialize_with = "milliseconds::serialize")]
    pub median: Duration,
    /// Requests that their host allows in a window, as it has announced.
    pub limit_requests: Option<u64>,
    /// The length of that window.
    #[serde(rename = "limit_window_s", serialize_with = "seconds")]
    pub limit_window: Option<Duration>,
    /// The last failure.
    pub failure: Option<String>,
}

/// Answers by their validators.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ValidatorCounts {
    /// A strong ETag.
    pub strong: usize,
    /// Another validator.
    pub other: usize,
    /// No validator.
    pub none: usize,
}

fn seconds<S: serde::Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(serializer)
}

impl MeasuredPace {
    /// The least time that so many requests take under the limit which the host has announced.
    pub fn least_time(&self, requests: u64) -> Option<Duration> {
        let (limit, window) = (self.limit_requests, self.limit_window);
        HostTraffic { limit, window, ..HostTraffic::default() }.least_time(requests, false)
    }

    /// Requests each resource of `sample`, one after the other.
    pub async fn measure(client: &Client, sample: &[Uri]) -> MeasuredPace {
        let mut times = Vec::new();
        let mut pace = MeasuredPace { asked: sample.len(), ..MeasuredPace::default() };
        for uri in sample {
            let began = Instant::now();
            let request = Request { method: Method::Head, ..Request::get(uri.clone(), DEADLINE) };
            match client.send(request).await {
                Ok(response) => {
                    times.push(began.elapsed());
                    pace.add(uri, &response);
                }
                Err(cause) => pace.failure = Some(chain(&cause)),
            }
        }
        let host = sample.first().map(Uri::authority);
        let announced = client.traffic().into_iter().find(|traffic| traffic.host.as_deref() == host);
        (pace.limit_requests, pace.limit_window) = announced.map_or((None, None), |host| (host.limit, host.window));
        times.sort_unstable();
        pace.answered = times.len();
        pace.median = times.get(times.len() / 2).copied().unwrap_or_default();
        pace
    }

    fn add(&mut self, uri: &Uri, response: &Response) {
        if response.media_type.as_deref() == Some("text/html") {
            self.pages += 1;
            self.pages_at.push(uri.clone());
        }
        let is_sized = response.encoding.is_none() && response.content_length.is_some_and(|length| length > 0);
        self.sized += usize::from(is_sized);
        match (response.etag.as_deref(), &response.last_modified) {
            (Some(etag), _) if etag.starts_with('"') => self.validators.strong += 1,
            (None, None) => self.validators.none += 1,
            _ => self.validators.other += 1,
        }
    }
}
