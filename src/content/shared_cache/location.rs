//! Where the shared cache is, and how it is opened.

use super::connector::Connector;
use crate::source::http::Client;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use std::sync::Arc;
use url::{Position, Url};

/// The shared cache as its options describe it.
#[derive(Clone)]
pub struct SharedCacheConfig {
    /// The address, as [`shared_cache_url`] reads it.
    pub url: Url,
    /// True if verified objects are uploaded.
    pub write: bool,
    /// Settings of the store by the names of their environment variables, which they override. They may be secret.
    pub settings: Vec<(String, String)>,
}

impl std::fmt::Debug for SharedCacheConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedCacheConfig({})", self.url)
    }
}

impl SharedCacheConfig {
    /// A web server is only read.
    pub(super) fn is_written(&self) -> bool {
        self.write && !self.url.scheme().starts_with("http")
    }
}

/// Reads the address of a shared cache. An error says what it must be.
pub fn shared_cache_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| match url.scheme() {
        "s3" | "gs" | "az" | "http" | "https" => url.has_host(),
        "file" => !url.has_host() && url.path() != "/",
        _ => false,
    });
    let url = url.ok_or_else(|| {
        "is not one of: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://HOST/PATH, file:///PATH".to_owned()
    })?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(
            "other users can read this; put user names, passwords and keys into a file (chmod 600) and name the file: \
             shared-cache-credentials=FILE, for https netrc=FILE"
                .to_owned(),
        );
    }
    Ok(url)
}

/// The store, and the path of the shared cache in it. The store's own settings come from the environment, and those of
/// `config` override them.
pub(super) fn open(
    config: &SharedCacheConfig,
    client: &Client,
) -> Result<(Arc<dyn ObjectStore>, Path), object_store::Error> {
    let (url, connector) = (&config.url, Connector::new(client));
    // A second try of the store is a second look, and the Source waits meanwhile.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let settings = || config.settings.iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" => {
            let builder = settings().try_fold(AmazonS3Builder::from_env(), |builder, (key, value)| {
                Ok::<_, object_store::Error>(builder.with_config(key.parse()?, value))
            })?;
            Arc::new(builder.with_url(url.as_str()).with_http_connector(connector).with_retry(retry).build()?)
        }
        "gs" => {
            let builder = settings().try_fold(GoogleCloudStorageBuilder::from_env(), |builder, (key, value)| {
                Ok::<_, object_store::Error>(builder.with_config(key.parse()?, value))
            })?;
            Arc::new(builder.with_url(url.as_str()).with_http_connector(connector).with_retry(retry).build()?)
        }
        "az" => {
            let builder = settings().try_fold(MicrosoftAzureBuilder::from_env(), |builder, (key, value)| {
                Ok::<_, object_store::Error>(builder.with_config(key.parse()?, value))
            })?;
            Arc::new(builder.with_url(url.as_str()).with_http_connector(connector).with_retry(retry).build()?)
        }
        "file" => Arc::new(LocalFileSystem::new()),
        _ => {
            let builder = HttpBuilder::new().with_url(&url[..Position::BeforePath]);
            Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
        }
    };
    Ok((store, Path::from_url_path(url.path())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_store_without_secrets() {
        for right in
            ["s3://b", "s3://b/p/q", "gs://b/p", "az://c/p", "https://h/p", "http://h:1/p", "file:///mnt/shared"]
        {
            assert!(shared_cache_url(right).is_ok(), "{right}");
        }
        for wrong in ["", "b/p", "ftp://h/p", "s3://", "s3:b", "file://h/p", "file:///", "/mnt/shared"] {
            assert!(shared_cache_url(wrong).is_err_and(|why| why.contains("s3://BUCKET")), "{wrong}");
        }
        for secret in ["s3://key:secret@b/p", "https://me@h/p", "https://h/p?sig=s3cr3t"] {
            let why = shared_cache_url(secret).unwrap_err();
            assert!(why.contains("shared-cache-credentials=FILE") && !why.contains("s3cr"), "{secret}");
        }
    }
}
