//! What stands behind an object: its stream, and the checkpoints that its catalog names.
//!
//! None of that depends on what the object is, and futures that code for every type awaits are [in boxes](Later): so it is compiled once,
//! and not once more with each type in each program.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::task::TaskHandle;
use ithaca_log::pos::{LogPos, StreamId};

use super::restore::Coming;
use super::slot::Later;
use super::{Handle, Inner, Runtime};
use crate::checkpoint::{Catalog, Last, Stored, catalog_of};
use crate::error::ObjectError;
use crate::key::Key;

/// How old what the catalog said may be when a view begins by it. What has changed since is noticed: what is gone is looked for in
/// vain.
const CATALOG_AGE: Duration = Duration::from_secs(1);

/// What a view can begin at.
pub(super) struct Candidates {
    /// Below which position calls are forgotten.
    pub(super) forgotten: LogPos,
    /// The checkpoints up to a limit, the newest first.
    pub(super) stored: Vec<(LogPos, Stored)>,
}

/// What the catalog says of the newest checkpoint.
pub(super) struct Newest {
    pub(super) stored: Option<(LogPos, Stored)>,
    /// After which the next one is due.
    pub(super) last: Last,
    /// The span of the past that is to be readable, if the object says so.
    pub(super) history: Option<Duration>,
}

/// The stream of one object, and its checkpoints.
pub(super) struct Backing {
    pub(super) runtime: Rc<Inner>,
    pub(super) stream: StreamId,
    pub(super) name: String,
    /// Whether the object has no catalog, because it is one.
    pub(super) is_alone: bool,
    catalog: RefCell<Option<Handle<Catalog>>>,
    /// A piece of the stream that is being read ahead.
    pub(super) coming: RefCell<Option<Coming>>,
    /// The checkpoint because of which a piece was refused that may be all that there is, and how many records it reflects.
    pub(super) doubt: Cell<Option<(LogPos, u64)>>,
}

impl Backing {
    pub(super) fn new(runtime: Rc<Inner>, stream: StreamId, name: &str, is_alone: bool) -> Self {
        let (catalog, coming, doubt) = (RefCell::default(), RefCell::default(), Cell::default());
        Self { runtime, stream, name: name.to_owned(), is_alone, catalog, coming, doubt }
    }

    /// The catalog of the object's checkpoints; `None` for a catalog itself, which has none.
    fn catalog(&self) -> Result<Option<Handle<Catalog>>, ObjectError> {
        if self.is_alone {
            return Ok(None);
        }
        let mut known = self.catalog.borrow_mut();
        if known.is_none() {
            let runtime = Runtime { inner: self.runtime.clone() };
            let name = format!("checkpoints of {}", self.name);
            *known = Some(runtime.open_stream(catalog_of(self.stream), &name)?);
        }
        Ok(known.clone())
    }

    /// The same for who needs one. Errors: `NoCheckpoints`.
    pub(super) fn kept(&self) -> Result<Handle<Catalog>, ObjectError> {
        self.catalog()?.ok_or_else(|| ObjectError::NoCheckpoints { object: self.name.clone() })
    }

    /// Brings the catalog up to date by a task of its own, if there is one, whatever comes of it.
    pub(super) fn sync_catalog(&self) -> Result<Option<TaskHandle<()>>, ObjectError> {
        Ok(self.catalog()?.map(|catalog| catalog.slot.sync_apart()))
    }

    /// What the catalog says now.
    pub(super) async fn look<T>(&self, look: impl FnOnce(&Catalog) -> T) -> Result<T, ObjectError> {
        self.kept()?.read(|| vec![Key::all()], look).await
    }

    /// What a view of at most `limit` can begin at, as the catalog says now, or has said `lately`.
    pub(super) fn candidates(
        &self,
        limit: LogPos,
        lately: bool,
    ) -> Later<'_, Result<Candidates, ObjectError>> {
        Box::pin(async move {
            let catalog = self.kept()?;
            let catalog = if lately { catalog.stale(CATALOG_AGE) } else { catalog };
            let candidates = |catalog: &Catalog| {
                let stored = catalog.stored().range(..=limit.0).rev();
                let stored = stored.map(|(upto, stored)| (LogPos(*upto), stored.clone()));
                Candidates { forgotten: catalog.forgotten(), stored: stored.collect() }
            };
            catalog.read(|| vec![Key::all()], candidates).await
        })
    }

    /// The newest checkpoint.
    pub(super) fn newest(&self) -> Later<'_, Result<Newest, ObjectError>> {
        Box::pin(self.look(|catalog| Newest {
            stored: catalog.newest().map(|(upto, stored)| (upto, stored.clone())),
            last: catalog.last(),
            history: catalog.history(),
        }))
    }

    /// Below which position calls are forgotten.
    pub(super) fn forgotten(&self) -> Later<'_, Result<LogPos, ObjectError>> {
        Box::pin(self.look(Catalog::forgotten))
    }
}
