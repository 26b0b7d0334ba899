//! Drives of a unit that come and go by orders while it serves: in simulated time, with the node cut off at every moment of a change.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{ChainOptions, Placement};
use ithaca_env::Env;
use ithaca_env::sim::{Death, DriveFault, ProcessId, Sim};
use ithaca_log::client::{Client, ClientOptions, DrivesError};
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::server::{LocalCluster, LocalOptions};
use ithaca_log::wire::{DriveRefusal, UnitDrive};

const NODE: NodeId = NodeId(1);
/// The drive of a unit that is given none.
const FIRST: &str = "/data/unit-1.chain";
const ADDED: &str = "/more/added";
const SEGMENT_BYTES: u64 = 128 << 10;
/// What takes longer than this does not come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node on a machine of its own, started again whenever it ends, and a client on another one.
struct World {
    sim: Sim,
    node: ProcessId,
    client: ProcessId,
    /// How often it ended by itself.
    ended: Cell<u32>,
    /// Why starts were refused.
    refused: Rc<RefCell<Vec<String>>>,
}

/// A unit whose segments lie on each drive in turn, of which each may have so many.
fn options(drives: &[&str], segments: u64) -> LocalOptions {
    let listen = SocketAddr::new(machine(1), 7420);
    let bytes = |segments| (64 << 10) + segments * SEGMENT_BYTES;
    LocalOptions {
        drives: drives.iter().map(PathBuf::from).collect(),
        create_bytes: bytes(2),
        chain: ChainOptions {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: bytes(segments),
            grow_bytes: 2 * SEGMENT_BYTES,
            reserve_segments: 1,
            tail_cache_bytes: 4096,
            placement: Placement::RoundRobin,
            ..ChainOptions::default()
        },
        ..LocalOptions::new(Path::new("/data"), listen)
    }
}

fn machine(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

impl World {
    fn new(options: LocalOptions) -> Self {
        let sim = Sim::new(1);
        let (node, client) = (sim.process("node", machine(1)), sim.process("client", machine(2)));
        let refused: Rc<RefCell<Vec<String>>> = Rc::default();
        let told = Rc::clone(&refused);
        sim.start(node, move |env| serve(env, options.clone(), Rc::clone(&told)));
        Self { sim, node, client, ended: Cell::default(), refused }
    }

    /// What a client does that has so much time for each call.
    fn run_within<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        timeout: Duration,
        work: impl FnOnce(Env, Client) -> F + 'static,
    ) -> T {
        let env = self.sim.env(self.client);
        let done: Rc<RefCell<Option<T>>> = Rc::default();
        let told = Rc::clone(&done);
        self.sim.env(self.client).spawn(async move {
            let endpoints = vec![SocketAddr::new(machine(1), 7420)];
            let options = ClientOptions { endpoints, timeout: PATIENCE, ..ClientOptions::default() };
            let patient = Client::connect(&env, options.clone()).await.expect("it serves");
            let client = match timeout == PATIENCE {
                true => patient,
                false => {
                    Client::connect(&env, ClientOptions { timeout, ..options }).await.expect("it serves")
                }
            };
            told.replace(Some(work(env, client).await));
        });
        let deadline = self.sim.now() + 10 * PATIENCE;
        loop {
            let running = |sim: &Sim| done.borrow().is_none() && sim.is_up(self.node);
            let _ = self.sim.run_while(deadline, running);
            if let Some(done) = done.take() {
                assert_eq!(*self.refused.borrow(), Vec::<String>::new(), "every start succeeds");
                return done;
            }
            let said = self.refused.borrow();
            assert!(!self.sim.is_up(self.node) && said.is_empty(), "it ends: {said:?}");
            self.ended.set(self.ended.get() + 1);
            self.sim.restart(self.node);
        }
    }

    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Env, Client) -> F + 'static,
    ) -> T {
        self.run_within(PATIENCE, work)
    }

    /// Appends entries with these numbers; the positions that they have.
    fn append(&self, numbers: Range<u64>) -> Vec<LogPos> {
        self.run(async move |_, client| append(&client, numbers).await)
    }

    /// The entries from number 0 on are at these positions, and the unit has its drives at these paths.
    fn check(&self, positions: &[LogPos], paths: &[&str]) {
        let expected: Vec<String> = paths.iter().map(ToString::to_string).collect();
        let positions = positions.to_vec();
        self.run(async move |_, client| {
            for (pos, number) in positions.into_iter().zip(0..) {
                assert_eq!(client.read(pos).await.expect("it is there").data, entry(number), "{pos}");
            }
            let listed = client.drives(NODE).await.expect("listed");
            assert_eq!(paths_of(&listed), expected);
            assert!(listed.iter().all(|drive| drive.is_there && !drive.is_leaving), "{listed:?}");
        });
    }

    fn drives(&self) -> Vec<UnitDrive> {
        self.run(async |_, client| client.drives(NODE).await.expect("listed"))
    }

    /// Does what `work` says while the node ends at the so-manieth I/O point. Returns whether it came to that.
    fn cut_off_at(&self, point: u64, death: Death, work: impl FnOnce(&World)) -> bool {
        self.sim.end_at_io(self.node, self.sim.io_points(self.node) + point, death);
        work(self);
        self.sim.end_at_io(self.node, u64::MAX, death);
        self.ended.get() > 0
    }

    fn restart(&self, death: Death) {
        self.sim.end(self.node, death);
        self.sim.restart(self.node);
    }
}

async fn serve(env: Env, options: LocalOptions, refused: Rc<RefCell<Vec<String>>>) {
    let ended = match LocalCluster::start(&env, options).await {
        Ok(cluster) => cluster.failed().await.to_string(),
        Err(error) => error.to_string(),
    };
    refused.borrow_mut().push(ended);
}

async fn append(client: &Client, numbers: Range<u64>) -> Vec<LogPos> {
    let mut positions = Vec::new();
    for number in numbers {
        positions.push(client.append(entry(number)).await.expect("there is room"));
    }
    positions
}

fn entry(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(1024))
}

fn paths_of(drives: &[UnitDrive]) -> Vec<String> {
    drives.iter().map(|drive| drive.path.clone()).collect()
}

fn path(path: &str) -> Vec<String> {
    vec![path.to_owned()]
}

#[test]
fn entries_appended_after_a_drive_was_added_are_on_it_and_all_are_kept_when_it_is_removed() {
    let world = World::new(options(&[], 64));
    let mut positions = world.append(0..40);
    // Appends go on meanwhile.
    positions.extend(world.run(async |env, client| {
        let appending = client.clone();
        let appends = env.spawn(async move { append(&appending, 40..100).await });
        client.add_drives(NODE, path(ADDED), 0).await.expect("it is blank");
        appends.join().await.expect("no panic")
    }));
    positions.extend(world.append(100..160));
    let added = world.drives().pop().expect("two");
    assert!(added.path == ADDED && added.live > 1 && added.data_bytes > 0, "{added:?}");
    world.check(&positions, &[FIRST, ADDED]);
    positions.extend(world.run(async |env, client| {
        let appending = client.clone();
        let appends = env.spawn(async move { append(&appending, 160..200).await });
        client.remove_drives(NODE, path(ADDED)).await.expect("the other one has room");
        appends.join().await.expect("no panic")
    }));
    world.check(&positions, &[FIRST]);
    let drive = world.sim.drive(machine(1), ADDED);
    assert!(world.sim.peek_drive(drive, 0, 64 << 10).iter().all(|&byte| byte == 0), "it is blank");
    // The first one can go as well, once there is another.
    world.run(async |_, client| {
        client.add_drives(NODE, path("/more/second"), 0).await.expect("it is blank");
        client.remove_drives(NODE, path(FIRST)).await.expect("the other one has room");
    });
    for death in [Death::Kill, Death::PowerCut] {
        world.restart(death);
        world.check(&positions, &["/more/second"]);
    }
}

/// A drive is added while the node is cut off at an I/O point. Returns whether that came before the end of the change.
fn add_cut_at(point: u64, death: Death, given: &[&str]) -> bool {
    let world = World::new(options(given, 64));
    let first = given.first().copied().unwrap_or(FIRST);
    let mut positions = world.append(0..30);
    let is_cut = world.cut_off_at(point, death, |world| {
        world.run(async |_, client| client.add_drives(NODE, path(ADDED), 0).await.expect("it is blank"));
    });
    world.check(&positions, &[first, ADDED]);
    positions.extend(world.append(30..90));
    world.restart(death);
    world.check(&positions, &[first, ADDED]);
    assert!(world.drives()[1].live > 0, "it is used");
    is_cut
}

#[test]
fn a_drive_is_added_wherever_the_node_is_cut_off_and_the_next_start_finds_it() {
    for (death, given) in
        [(Death::PowerCut, &[][..]), (Death::Kill, &[]), (Death::PowerCut, &["/data/given"])]
    {
        let mut point = 1;
        while add_cut_at(point, death, given) {
            point += 1;
        }
        assert!(point > 20, "only {point} I/O points: nothing was cut off");
    }
}

/// A drive with entries on it is removed while the node is cut off at an I/O point.
fn remove_cut_at(point: u64, death: Death, removed: &'static str) -> bool {
    let world = World::new(options(&[FIRST, ADDED], 64));
    let mut positions = world.append(0..60);
    assert!(world.drives().iter().all(|drive| drive.live > 0), "both hold something");
    let is_cut = world.cut_off_at(point, death, |world| {
        world.run(async move |_, client| {
            client.remove_drives(NODE, path(removed)).await.expect("the other one has room");
        });
    });
    let left = if removed == FIRST { ADDED } else { FIRST };
    world.check(&positions, &[left]);
    // With the flags of the start before, which name the drive that is gone.
    world.restart(death);
    positions.extend(world.append(60..70));
    world.check(&positions, &[left]);
    is_cut
}

#[test]
fn a_drive_is_removed_wherever_the_node_is_cut_off_and_no_later_start_takes_it_back() {
    for (death, removed) in [(Death::PowerCut, ADDED), (Death::Kill, FIRST)] {
        let mut point = 1;
        while remove_cut_at(point, death, removed) {
            point += 2;
        }
        assert!(point > 40, "only {point} I/O points: nothing was cut off");
    }
}

#[test]
fn a_removal_that_nobody_waits_for_goes_on_also_over_a_crash() {
    let world = World::new(options(&[FIRST, ADDED], 200));
    let positions = world.append(0..600);
    // Moving takes as long as the drive takes.
    let slow = |percent| {
        let drive = world.sim.drive(machine(1), ADDED);
        world.sim.fault_drive(drive, DriveFault::Slow { percent, span: Duration::from_secs(3600) });
    };
    slow(20_000);
    let removed = world.run_within(Duration::from_millis(200), async |_, client| {
        (client.remove_drives(NODE, path(ADDED)).await, client.drives(NODE).await.expect("listed"))
    });
    let (removed, listed) = removed;
    let is_under_way = matches!(&removed, Err(DrivesError::UnderWay { node: NODE, left, .. }) if *left > 0);
    assert!(is_under_way, "{removed:?}");
    assert!(listed[1].is_leaving && !listed[0].is_leaving, "{listed:?}");
    world.restart(Death::Kill);
    // It leaves again from the beginning on, without being asked to.
    let leaving = world.drives().into_iter().map(|drive| drive.is_leaving).collect::<Vec<_>>();
    assert_eq!(leaving, [false, true]);
    slow(100);
    // The same order only waits for it.
    world.run(async |env, client| {
        let again = client.clone();
        let both = [client, again].map(|client| {
            env.spawn(async move { client.remove_drives(NODE, path(ADDED)).await.expect("there is room") })
        });
        for removed in both {
            removed.join().await.expect("no panic");
        }
    });
    world.check(&positions, &[FIRST]);
    let gone = world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await);
    let is_no_drive = matches!(
        &gone,
        Err(DrivesError::Refused { why: DriveRefusal::NoSuchDrive, told, .. }) if told.contains(ADDED)
    );
    assert!(is_no_drive, "{gone:?}");
}

#[test]
fn orders_that_are_repeated_change_nothing_and_mirrors_are_added_and_removed_as_one() {
    let world = World::new(options(&[], 64));
    let mut positions = world.append(0..20);
    let sides = || vec!["/more/a".to_owned(), "/more/b".to_owned()];
    world.run(async move |env, client| {
        for _ in 0..2 {
            client.add_drives(NODE, sides(), 0).await.expect("they are blank");
        }
        client.mirror_drive(NODE, FIRST.to_owned(), path("/more/c"), 0).await.expect("it is blank");
        client.mirror_drive(NODE, FIRST.to_owned(), path("/more/c"), 0).await.expect("it is so already");
        while client.drives(NODE).await.expect("listed").iter().any(|drive| drive.is_stale) {
            env.sleep(Duration::from_millis(10)).await;
        }
    });
    positions.extend(world.append(20..60));
    let links = |world: &World| world.drives().iter().map(|drive| (drive.link, drive.path.clone())).collect();
    let found: Vec<(u32, String)> = links(&world);
    let named = |link, path: &str| (link, path.to_owned());
    let expected = [named(0, FIRST), named(1, "/more/a"), named(1, "/more/b"), named(0, "/more/c")];
    assert_eq!(found, expected);
    world.restart(Death::PowerCut);
    assert_eq!(links(&world), expected);
    world.check(&positions, &[FIRST, "/more/a", "/more/b", "/more/c"]);
    let half = world.run(async |_, client| client.remove_drives(NODE, path("/more/b")).await);
    let told = half.expect_err("it would take the other side along").to_string();
    assert!(told.contains("/more/b: is mirrored by /more/a") && told.starts_with("node 1: "), "{told}");
    world.run(async move |_, client| client.remove_drives(NODE, sides()).await.expect("there is room"));
    world.restart(Death::PowerCut);
    world.check(&positions, &[FIRST, "/more/c"]);
}

#[test]
fn a_removal_for_which_the_others_have_no_room_is_refused_and_changes_nothing() {
    let world = World::new(options(&[FIRST, ADDED], 12));
    let positions = world.append(0..180);
    let refused = world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await);
    let is_no_room = matches!(&refused, Err(DrivesError::Refused { why: DriveRefusal::NoRoom, told, .. }) if told.contains(ADDED));
    assert!(is_no_room, "{refused:?}");
    world.restart(Death::Kill);
    world.check(&positions, &[FIRST, ADDED]);
    world.run(async |_, client| client.trim_prefix(LogPos(150)).await.expect("a trim works"));
    world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await.expect("there is room now"));
    world.run(async |_, client| assert_eq!(client.read(LogPos(170)).await.expect("kept").data, entry(170)));
}

#[test]
fn a_drive_with_damaged_entries_is_not_given_up_until_they_are_trimmed() {
    let world = World::new(options(&[FIRST, ADDED], 64));
    world.append(0..100);
    let drive = world.sim.drive(machine(1), ADDED);
    // In the first group of its first segment.
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: (64 << 10) + (20 << 10), bit: 3 });
    world.restart(Death::Kill);
    let refused = world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await);
    let is_damaged = matches!(&refused, Err(DrivesError::Refused { why: DriveRefusal::Damaged, told, .. }) if told.contains(ADDED));
    assert!(is_damaged, "{refused:?}");
    assert_eq!(paths_of(&world.drives()), [FIRST, ADDED]);
    world.run(async |_, client| {
        client.trim_prefix(LogPos(100)).await.expect("a trim works");
        client.remove_drives(NODE, path(ADDED)).await.expect("nothing on it is needed");
    });
    world.restart(Death::PowerCut);
    assert_eq!(paths_of(&world.drives()), [FIRST]);
}

#[test]
fn a_removal_during_which_reads_fail_is_to_be_tried_again_and_works_when_they_do() {
    // Its entries are all there: nobody is to be told to trim them.
    let world = World::new(options(&[FIRST, ADDED], 64));
    let positions = world.append(0..100);
    // What was written last is not in memory any more.
    world.restart(Death::Kill);
    assert_eq!(paths_of(&world.drives()), [FIRST, ADDED]);
    world.sim.fault_drive(world.sim.drive(machine(1), ADDED), DriveFault::FailReads { count: 200 });
    let mut refused = 0;
    loop {
        match world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await) {
            Ok(()) => break,
            Err(DrivesError::Refused { why: DriveRefusal::Failed, told, .. }) => {
                assert!(told.contains(ADDED) && told.contains("try again"), "{told}");
            }
            Err(other) => panic!("{other}"),
        }
        refused += 1;
    }
    assert!((1..40).contains(&refused), "{refused} times");
    world.restart(Death::PowerCut);
    world.check(&positions, &[FIRST]);
}

/// Where the node remembers its drives.
const REGISTER: &str = "/data/drives.register";

#[test]
fn an_order_that_could_not_be_remembered_is_refused_and_can_be_given_again() {
    // No drive could be changed any more until the next start.
    for fault in [DriveFault::NoSpace { count: 1 }, DriveFault::FailWrites { count: 1 }] {
        let world = World::new(options(&[FIRST], 64));
        let positions = world.append(0..10);
        world.sim.fault_drive(world.sim.drive(machine(1), REGISTER), fault);
        let refused = world.run(async |_, client| client.add_drives(NODE, path(ADDED), 0).await);
        let is_failed = matches!(&refused, Err(DrivesError::Refused { why: DriveRefusal::Failed, told, .. }) if told.contains(REGISTER));
        assert!(is_failed, "{refused:?}");
        world.check(&positions, &[FIRST]);
        world.run(async |_, client| client.add_drives(NODE, path(ADDED), 0).await.expect("it works now"));
        world.restart(Death::PowerCut);
        world.check(&positions, &[FIRST, ADDED]);
    }
}

/// A drive is removed, of which the last word cannot be written, and added again while the node is cut off at an I/O point.
fn add_again_cut_at(point: u64) -> bool {
    let world = World::new(options(&[FIRST, ADDED], 64));
    let positions = world.append(0..60);
    let slow = |percent| {
        let drive = world.sim.drive(machine(1), ADDED);
        world.sim.fault_drive(drive, DriveFault::Slow { percent, span: Duration::from_secs(3600) });
    };
    slow(20_000);
    let time = Duration::from_millis(200);
    let removed = world.run_within(time, async |_, client| client.remove_drives(NODE, path(ADDED)).await);
    assert!(matches!(removed, Err(DrivesError::UnderWay { .. })), "{removed:?}");
    world.sim.fault_drive(world.sim.drive(machine(1), REGISTER), DriveFault::FailWrites { count: 1 });
    slow(100);
    world.run(async |_, client| client.remove_drives(NODE, path(ADDED)).await.expect("there is room"));
    let is_cut = world.cut_off_at(point, Death::Kill, |world| {
        world.run(async |env, client| {
            // What the removal left in the memory of the node may take the addition away again.
            while client.add_drives(NODE, path(ADDED), 0).await.is_err() {
                env.sleep(Duration::from_millis(20)).await;
            }
        });
    });
    world.check(&positions, &[FIRST, ADDED]);
    is_cut
}

#[test]
fn a_drive_is_found_although_what_was_to_be_remembered_before_it_came_back_could_not_be_written() {
    // The register said, or did not say, that the drive had gone; that it was back was then not written at all.
    let mut point = 1;
    while add_again_cut_at(point) {
        point += 1;
    }
    assert!(point > 20, "only {point} I/O points: nothing was cut off");
}

#[test]
fn a_side_that_failed_and_was_not_told_is_refused_at_a_start_without_the_other_one() {
    // What was acknowledged since would be gone, and its positions would be given again.
    const OTHER: &str = "/other/side";
    let world = World::new(options(&["/data/side+/other/side"], 64));
    let positions = world.append(0..10);
    // What an append writes, and the superblock that is to say that it is stale. Then it works again.
    world.sim.fault_drive(world.sim.drive(machine(1), OTHER), DriveFault::FailWrites { count: 5 });
    let more = world.append(10..20);
    let states: Vec<(String, bool)> =
        world.drives().into_iter().map(|drive| (drive.path, drive.is_stale)).collect();
    assert_eq!(states, [("/data/side".to_owned(), false), (OTHER.to_owned(), true)]);
    world.sim.end(world.node, Death::PowerCut);
    world.sim.fault_drive(world.sim.drive(machine(1), "/data/side"), DriveFault::Gone);
    world.sim.restart(world.node);
    let deadline = world.sim.now() + PATIENCE;
    let _ = world.sim.run_while(deadline, |sim| sim.is_up(world.node));
    let refused = world.refused.borrow();
    let told = refused.first().expect("it does not start");
    assert!(told.contains(OTHER) && told.contains("old copy") && told.contains(REGISTER), "{told}");
    assert_eq!((positions.len(), more.len()), (10, 10));
}
