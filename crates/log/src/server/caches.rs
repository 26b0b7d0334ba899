//! The cache drive and the metadata drive of a process, which the chains of all its units share.

use std::path::{Path, PathBuf};

use ithaca_chain::{CacheDrive, CacheError, MetadataDrive, MetadataError};
use ithaca_env::Env;
use ithaca_env::drive::{DriveError, OpenDrive};

use super::local::StartError;

/// A drive for copies of what was written or read of late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// A file or block device; a path that is not there becomes a file. It must be blank, or have been a cache.
    pub path: PathBuf,
    /// Bytes of it to use, at the most.
    pub size_bytes: u64,
}

/// The drives that the chains of all units of a process share.
pub(super) struct Shared {
    pub(super) cache: Option<CacheDrive>,
    pub(super) metadata: Option<MetadataDrive>,
}

impl Shared {
    /// Opens those that there are to be. One that is not there is made, after the other was opened: nothing is made beside one that is refused.
    pub(super) async fn open(
        env: &Env,
        cache: Option<&CacheOptions>,
        metadata: Option<&Path>,
    ) -> Result<Self, StartError> {
        let is_new = match cache {
            Some(CacheOptions { path, .. }) => {
                let open = OpenDrive { path: path.clone(), create_bytes: None, read_only: true };
                matches!(env.open_drive(open).await, Err(DriveError::NotFound { .. }))
            }
            None => false,
        };
        if is_new {
            let metadata = open_metadata(env, metadata).await?;
            return Ok(Self { cache: open_cache(env, cache).await?, metadata });
        }
        let cache = open_cache(env, cache).await?;
        Ok(Self { cache, metadata: open_metadata(env, metadata).await? })
    }
}

/// Opens the cache drive, if there is to be one. A drive that fails is done without, with a warning. Errors: something else is on it, it is too
/// small, another process has it, or there is no such place: nothing was written then.
async fn open_cache(env: &Env, options: Option<&CacheOptions>) -> Result<Option<CacheDrive>, CacheError> {
    let Some(options) = options else { return Ok(None) };
    let create_bytes = Some(BLANK_BYTES);
    let open = OpenDrive { path: options.path.clone(), create_bytes, read_only: false };
    let opened = match env.open_drive(open).await {
        Ok(drive) => CacheDrive::open(env, drive, options.size_bytes).await,
        Err(error) if is_mistake(&error) => return Err(error.into()),
        Err(error) => Err(error.into()),
    };
    match opened {
        Ok(cache) => Ok(Some(cache)),
        Err(CacheError::Drive(error)) => {
            tracing::warn!(%error, "the cache drive cannot be used; reads go to the units' drives");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Opens the metadata drive, if there is to be one. A drive that fails is done without, with a warning. Errors: something else is on it, it is too
/// small, another process has it, or there is no such place: nothing was written then.
async fn open_metadata(env: &Env, path: Option<&Path>) -> Result<Option<MetadataDrive>, MetadataError> {
    let Some(path) = path else { return Ok(None) };
    let open = OpenDrive { path: path.to_owned(), create_bytes: Some(BLANK_BYTES), read_only: false };
    let opened = match env.open_drive(open).await {
        Ok(drive) => MetadataDrive::open(env, drive).await,
        Err(error) if is_mistake(&error) => return Err(error.into()),
        Err(error) => Err(error.into()),
    };
    match opened {
        Ok(metadata) => Ok(Some(metadata)),
        Err(MetadataError::Drive(error)) => {
            tracing::warn!(%error, "the metadata drive cannot be used; the units' own drives are read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether it is not the drive that fails, but that the wrong one is named.
fn is_mistake(error: &DriveError) -> bool {
    error.is_unfit() || matches!(error, DriveError::InUse { .. })
}

/// A new file begins with so many bytes, and grows to its size.
const BLANK_BYTES: u64 = 64 << 10;
