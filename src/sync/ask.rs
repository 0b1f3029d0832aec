//! Asking resources themselves: whether they are gone, or show what was announced of them.

use super::Synchronizer;
use crate::document::Uri;
use crate::source::http::{HttpError, Request, Response};
use futures_util::{FutureExt, StreamExt, stream};
use std::time::Duration;

/// Resources asked at once.
const AT_ONCE: usize = 8;

/// How long one resource has to answer.
const DUE: Duration = Duration::from_secs(30);

impl Synchronizer {
    /// Asks resources by HEAD, past caches, for as long as all of them together have. What `judge` makes of each answer; those that
    /// there was no time for are not among them.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        resources: Vec<Uri>,
        judge: fn(Result<Response, HttpError>) -> T,
    ) -> Vec<(Uri, T)> {
        let ask = |uri: Uri| {
            let client = self.fetch.client.clone();
            async move {
                let mut request = Request::head(uri.clone(), DUE);
                request.no_cache = true;
                (uri, judge(client.send(request).await))
            }
            .boxed()
        };
        let asked: Vec<_> = resources.into_iter().map(ask).collect();
        let answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        answers.take_until(tokio::time::sleep(self.tuning.answers_due)).collect().await
    }
}
