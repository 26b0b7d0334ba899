//! A process that works on a chain, checks what it reads, and is killed and started again.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainId, ChainOptions, Drives, Heading, Identity, Label, MetadataDrive,
    OpenError, RunKind, Ticket,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::sim::{Death, ProcessId, Random, Sim, SimOptions};

use crate::model::{Model, View, junk, run_of};

pub const MACHINE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// Knobs that make rare paths common: tiny segments, groups and caches.
pub fn small_options() -> ChainOptions {
    ChainOptions {
        segment_bytes: 128 << 10,
        flights: 2,
        group_max_bytes: 16 << 10,
        queue_max_bytes: 1 << 20,
        tail_cache_bytes: 64 << 10,
        index_cache_bytes: 16 << 10,
        segments_ready: 1,
        capacity_bytes: 4 << 20,
        grow_bytes: 256 << 10,
        ..ChainOptions::default()
    }
}

/// Knobs from a seed.
pub fn random_options(rng: &mut Random) -> ChainOptions {
    ChainOptions {
        segment_bytes: rng.pick(&[128 << 10, 160 << 10, 256 << 10]),
        flights: rng.pick(&[1, 2, 2, 3, 8]),
        group_max_bytes: rng.pick(&[1, 8 << 10, 32 << 10, 1 << 20]),
        tail_cache_bytes: rng.pick(&[0, 32 << 10, 1 << 20]),
        index_cache_bytes: rng.pick(&[0, 16 << 10, 1 << 20]),
        segments_ready: rng.pick(&[0, 1, 2]),
        capacity_bytes: rng.pick(&[2 << 20, 4 << 20]),
        ..small_options()
    }
}

pub fn identity() -> Identity {
    Identity { id: ChainId(*b"a chain of tests"), label: Label::new("unit-1").expect("short") }
}

pub async fn open_drive(env: &Env) -> Drive {
    open_named(env, "chain").await
}

/// Opens the drive of this name, or makes it.
pub async fn open_named(env: &Env, name: &str) -> Drive {
    let open = OpenDrive { path: name.into(), create_bytes: Some(64 << 10), read_only: false };
    env.open_drive(open).await.expect("the drive opens")
}

/// Opens the drives of these names.
pub async fn open_drives(env: &Env, names: &[&str]) -> Vec<Drive> {
    let mut drives = Vec::new();
    for name in names {
        drives.push(open_named(env, name).await);
    }
    drives
}

/// Opens the chain, or creates it if nothing of it was ever acknowledged.
pub async fn open_or_create(
    env: &Env,
    names: &[&str],
    options: ChainOptions,
    model: &RefCell<Model>,
) -> Chain {
    open_over(env, open_drives(env, names).await.into(), options, model).await
}

/// Opens the metadata drive of this name, or makes it, if it can be used.
pub async fn open_metadata(env: &Env, name: Option<&str>) -> Option<MetadataDrive> {
    let open = OpenDrive { path: name?.into(), create_bytes: Some(64 << 10), read_only: false };
    let drive = env.open_drive(open).await.ok()?;
    MetadataDrive::open(env, drive).await.ok()
}

async fn open_over(env: &Env, drives: Drives, options: ChainOptions, model: &RefCell<Model>) -> Chain {
    match Chain::open(env, drives.clone(), Some(&identity()), options.clone()).await {
        Ok((chain, recovered)) => {
            assert_eq!(recovered.damage, [], "no damage was done");
            model.borrow_mut().settle(&recovered);
            chain
        }
        Err(OpenError::NotAChain { .. } | OpenError::SuperblockLost { .. } | OpenError::TooSmall { .. }) => {
            assert_eq!(model.borrow().total_acked, 0, "an acknowledged chain is not lost");
            Chain::create(env, drives, identity(), options).await.expect("it is created")
        }
        Err(other) => panic!("{other}"),
    }
}

/// Reads every key of the model's truth, one by one and as runs, and some that are not there.
pub async fn check_everything(chain: &Chain, model: &RefCell<Model>) {
    let view = model.borrow().base.clone();
    let end = view.covered().last().map_or(10, |last| last + 10);
    for (&key, (version, kind, data)) in &view.records {
        let record = chain.read(key).await.expect("it can be read").expect("it is there");
        assert_eq!((record.version, record.kind, &record.data), (*version, *kind, data), "key {key}");
        assert_eq!(&record.meta[..], version.to_le_bytes());
        if let Some(cached) = chain.try_read_cached(key) {
            assert_eq!(cached.as_ref(), Some(&record));
        }
    }
    for gap in view.covered().gaps(0..end).chain(view.released.ranges()) {
        let key = gap.start;
        assert_eq!(chain.read(key).await.expect("no damage"), None, "key {key}");
    }
    check_space(chain, view.records.values().map(|(_, _, data)| data.len() as u64).sum());
    for limit_bytes in [1, 5000, usize::MAX] {
        let mut from = 0;
        let mut seen = Vec::new();
        loop {
            let runs = chain.read_runs(from, end, limit_bytes).await.expect("no damage");
            let Some(last) = runs.last() else { break };
            from = last.keys().end;
            for run in &runs {
                assert_eq!(run.table.first_mismatch(&run.data), None);
                seen.extend(run.keys().map(|key| (key, run.slice(key..key + 1).data)));
            }
        }
        let expected: Vec<(u64, Bytes)> =
            view.records.iter().map(|(&key, (_, _, data))| (key, data.clone())).collect();
        assert!(seen == expected, "runs of at most {limit_bytes} bytes hold every record once");
        check_headings(chain, &view, end, limit_bytes).await;
    }
}

/// The heads of the runs, read with and without the drive, name every record once, with the version and the meta of its run.
async fn check_headings(chain: &Chain, view: &View, end: u64, limit_bytes: usize) {
    let expected: Vec<(u64, u64, RunKind)> =
        view.records.iter().map(|(&key, (version, kind, _))| (key, *version, *kind)).collect();
    let (mut from, mut seen) = (0, Vec::new());
    while from < end {
        let mut piece = Vec::new();
        let mut note = |head: Heading<'_>| {
            assert_eq!(head.meta, head.version.to_le_bytes());
            piece.extend(head.keys.map(|key| (key, head.version, head.kind)));
        };
        let next = chain.visit_headings(from..end, limit_bytes, &mut note).await.expect("no damage");
        assert!(next > from, "at least one head");
        let read = std::mem::take(&mut piece);
        let cached = chain.try_visit_headings(from..next, usize::MAX, |head| {
            piece.extend(head.keys.map(|key| (key, head.version, head.kind)));
        });
        assert!(cached.is_none_or(|to| to == next && piece == read), "memory says the same as the drive");
        seen.extend(read);
        from = next;
    }
    assert!(seen == expected, "heads of at most {limit_bytes} bytes name every record once");
}

/// Every segment is in one state, and what is in them is what is live, and garbage: nothing that is live is missing.
fn check_space(chain: &Chain, live_bytes: u64) {
    let stats = chain.stats();
    let states = stats.segments_ready + stats.segments_raw + stats.segments_open + stats.segments_closed;
    let mut links: Vec<(u32, u64, u64)> =
        stats.links.iter().map(|link| (link.link, link.segments, link.data_bytes)).collect();
    // Sides of a link hold the same.
    links.dedup_by_key(|(link, _, _)| *link);
    assert_eq!(states, links.iter().map(|(_, segments, _)| segments).sum::<u64>(), "{stats:?}");
    assert_eq!(stats.data_bytes, links.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), "{stats:?}");
    assert!(stats.data_bytes >= live_bytes, "{live_bytes} bytes are live: {stats:?}");
}

/// What a life does: appends, releases, waits and reads, by a seed.
pub struct Workload {
    pub rng: Random,
    pub steps: usize,
    pub close: bool,
    /// Large payloads, so that segments roll and are recycled all the time.
    pub heavy: bool,
    /// Releases from the middle, here and there, so that segments are left with a few records.
    pub sparse: bool,
}

impl Workload {
    /// The next batch: new keys, now and then out of order; releases from the front and from the middle; states.
    pub fn batch(&mut self, model: &mut Model) -> Batch {
        let covered = model.view(model.since.len()).covered();
        let next_key = covered.last().map_or(0, |last| last + 1);
        let mut batch = Batch::default();
        let rng = &mut self.rng;
        let mut first_key = next_key + rng.pick(&[0, 0, 0, 1, 5]);
        for _ in 0..rng.pick(&[0, 1, 1, 1, 2, 3]) {
            model.serial += 1;
            let version = model.serial;
            let count = 1 + rng.below(6) as usize;
            if rng.below(8) == 0 {
                batch.runs.push(junk(first_key, count, version));
            } else {
                let whole_blocks = self.heavy || rng.below(4) == 0;
                let payloads: Vec<Bytes> = (0..count.min(if whole_blocks { 2 } else { 6 }))
                    .map(|index| {
                        let len = if whole_blocks { 4096 } else { rng.pick(&[0, 1, 16, 100, 700]) };
                        let mut payload = vec![version as u8; len];
                        payload
                            .iter_mut()
                            .take(8)
                            .for_each(|byte| *byte = (version * 7 + index as u64) as u8);
                        Bytes::from(payload)
                    })
                    .collect();
                batch.runs.push(run_of(first_key, version, &payloads));
            }
            first_key = batch.runs.last().expect("just added").keys().end + rng.pick(&[0, 0, 3]);
        }
        if rng.below(3) == 0 {
            // A hole that was left behind is filled late.
            let gap = covered.gaps(0..next_key).next();
            if let Some(gap) = gap {
                model.serial += 1;
                batch.runs.push(junk(gap.start, 1, model.serial));
            }
        }
        if self.sparse && rng.below(20) != 0 {
            if next_key > 20 {
                let start = rng.below(next_key - 10);
                batch.release.push(start..start + 3 + rng.below(6));
            }
        } else if rng.below(6) == 0 && next_key > 4 {
            let upto = next_key.saturating_sub(rng.below(40));
            batch.release.push(0..upto);
        } else if rng.below(6) == 0 && next_key > 10 {
            let start = rng.below(next_key - 5);
            batch.release.push(start..start + 1 + rng.below(4));
        }
        // What is released is not written again.
        batch.runs.retain(|run| {
            batch.release.iter().all(|range| range.end <= run.first_key || range.start >= run.keys().end)
        });
        if rng.below(4) == 0 {
            model.serial += 1;
            batch.state = Some(Bytes::from(model.serial.to_le_bytes().to_vec()));
        }
        batch
    }

    pub async fn work(mut self, env: Env, chain: Chain, model: Rc<RefCell<Model>>) {
        let mut tickets: Vec<Ticket> = Vec::new();
        for _ in 0..self.steps {
            let batch = self.batch(&mut model.borrow_mut());
            match chain.append(batch.clone()) {
                Ok(ticket) => {
                    tickets.push(ticket);
                    model.borrow_mut().since.push(batch);
                }
                Err(
                    AppendError::Full { .. } | AppendError::Overloaded { .. } | AppendError::TooSparse { .. },
                ) => {
                    let upto = model
                        .borrow()
                        .view(model.borrow().since.len())
                        .covered()
                        .last()
                        .map_or(0, |last| last + 1);
                    let release = Batch { release: std::iter::once(0..upto).collect(), ..Batch::default() };
                    if let Ok(ticket) = chain.append(release.clone()) {
                        tickets.push(ticket);
                        model.borrow_mut().since.push(release);
                    }
                    env.yield_now().await;
                }
                Err(AppendError::TooLarge { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            match self.rng.below(5) {
                0 => chain.wait(*tickets.last().unwrap_or(&Ticket(0))).await.expect("no fault was planted"),
                1 => env.sleep(std::time::Duration::from_micros(self.rng.below(200))).await,
                2 => self.read_one(&chain, &model).await,
                _ => {}
            }
            note_durable(&chain, &tickets, &model);
        }
        if self.sparse {
            // Time to clean.
            env.sleep(std::time::Duration::from_millis(20)).await;
        }
        if self.close {
            chain.clone().close().await.expect("no fault was planted");
        } else if let Some(last) = tickets.last() {
            chain.wait(*last).await.expect("no fault was planted");
        }
        note_durable(&chain, &tickets, &model);
    }

    /// What is durable can be read, and is what was written.
    async fn read_one(&mut self, chain: &Chain, model: &RefCell<Model>) {
        let (view, latest) = {
            let model = model.borrow();
            (model.view(model.acked), model.view(model.since.len()))
        };
        let Some(last) = view.covered().last() else { return };
        let from = self.rng.below(last + 1);
        let Some((&key, (version, _, data))) = view.records.range(from..).next() else { return };
        // A release that is not acknowledged yet may already count.
        let may_be_gone = latest.released.contains(key);
        match chain.read(key).await.expect("it can be read") {
            Some(record) => assert_eq!((record.version, &record.data), (*version, data), "key {key}"),
            None => assert!(may_be_gone, "key {key} is acknowledged and not there"),
        }
        let runs = chain.read_runs(key, key + 20, 3000).await.expect("it can be read");
        for run in runs {
            for key in run.keys() {
                let data = &latest.records.get(&key).map(|(_, _, data)| data.clone());
                let found = Some(run.slice(key..key + 1).data);
                assert!(*data == found || latest.released.contains(key), "key {key}");
            }
        }
    }
}

fn note_durable(chain: &Chain, tickets: &[Ticket], model: &RefCell<Model>) {
    let durable = chain.durable();
    let mut model = model.borrow_mut();
    let acked = tickets.partition_point(|ticket| *ticket <= durable);
    model.total_acked += (acked - model.acked) as u64;
    model.acked = acked;
}

/// One machine with one process and the drives of one chain.
pub struct World {
    pub sim: Sim,
    pub process: ProcessId,
    pub model: Rc<RefCell<Model>>,
    pub drives: Vec<&'static str>,
    /// The metadata drive of the next life.
    pub metadata: Option<&'static str>,
    /// Segments that were cleaned in lives that came to their end.
    pub cleaned: Rc<Cell<u64>>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::over(seed, &["chain"])
    }

    /// A world whose chain has these drives.
    pub fn over(seed: u64, drives: &[&'static str]) -> Self {
        // Some drives answer in an order that has little to do with that of the requests.
        let drive_jitter_percent = Random::new(seed).pick(&[30, 300, 2000]);
        let sim = Sim::with_options(seed, SimOptions { drive_jitter_percent, ..SimOptions::default() });
        let process = sim.process("unit", MACHINE);
        let (model, cleaned) = Default::default();
        Self { sim, process, model, drives: drives.to_vec(), metadata: None, cleaned }
    }

    /// Itself after lives that end well, closed and started again, and what the chain holds.
    pub fn after_lives<const N: usize>(self, options: &ChainOptions, lives: [Workload; N]) -> (Self, View) {
        for workload in lives {
            assert!(self.live(options, workload), "a life without faults ends well");
        }
        self.sim.end(self.process, Death::PowerCut);
        self.sim.restart(self.process);
        let view = {
            let model = self.model.borrow();
            model.view(model.since.len())
        };
        (self, view)
    }

    /// One life: opens, checks everything, works. True if it came to its end.
    pub fn live(&self, options: &ChainOptions, workload: Workload) -> bool {
        if !self.sim.is_up(self.process) {
            self.sim.restart(self.process);
        }
        let env = self.sim.env(self.process);
        let (model, options) = (Rc::clone(&self.model), options.clone());
        let (names, cleaned) = (self.drives.clone(), Rc::clone(&self.cleaned));
        let metadata = self.metadata;
        self.comes_to_its_end(async move {
            let metadata = open_metadata(&env, metadata).await;
            let drives = Drives::from(open_drives(&env, &names).await).with_metadata(metadata.as_ref());
            let chain = open_over(&env, drives, options, &model).await;
            check_everything(&chain, &model).await;
            assert_eq!(chain.stats().damage, [], "no damage was done");
            workload.work(env, chain.clone(), model).await;
            cleaned.set(cleaned.get() + chain.stats().counters.segments_cleaned);
        })
    }

    /// Runs what the process does until that ends or the process does. Returns whether it came to its end.
    pub fn comes_to_its_end(&self, life: impl Future<Output = ()> + 'static) -> bool {
        let done = Rc::new(Cell::new(false));
        let (process, over, seen) = (self.process, Rc::clone(&done), Rc::clone(&done));
        self.sim.env(process).spawn(async move {
            life.await;
            over.set(true);
        });
        let waited = self.sim.run_while(ithaca_env::Time::MAX, move |sim| sim.is_up(process) && !seen.get());
        waited.expect("it ends or it is ended");
        done.get()
    }

    /// The power is cut now, and at no I/O point later, and the process begins again.
    pub fn cut_power(&self) {
        self.sim.end(self.process, Death::PowerCut);
        self.sim.end_at_io(self.process, u64::MAX, Death::PowerCut);
        self.sim.restart(self.process);
    }

    /// A last life that only looks. What a second recovery finds is what the first found.
    pub fn audit(&self, options: &ChainOptions) {
        self.sim.end_at_io(self.process, u64::MAX, Death::PowerCut);
        for _ in 0..2 {
            let looks = Workload { rng: Random::new(0), steps: 0, close: false, heavy: false, sparse: false };
            assert!(self.live(options, looks), "nothing ends it");
            self.sim.end(self.process, Death::PowerCut);
        }
    }
}
