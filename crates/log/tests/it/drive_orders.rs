//! Orders about drives that are refused, each with one line that says why, and orders to one node of several.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Chain, ChainId, ChainOptions, Identity, Label};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability, OpenDrive, PageBuf};
use ithaca_log::client::{CallError, Client, ClientOptions, Connection, DrivesError, Identity as Caller};
use ithaca_log::pos::{ClientId, ClusterId, Epoch, NodeId};
use ithaca_log::wire::{ChangeDrives, DriveChange, DriveRefusal, DrivesChanged, Refusal};
use tempfile::TempDir;

use crate::nodes::{Cluster, node_options};
use crate::worlds::{append, options, run, start};

const NODE: NodeId = NodeId(1);

fn named(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

async fn created(env: &Env, path: &str, bytes: u64) -> Drive {
    let open = OpenDrive { path: path.into(), create_bytes: Some(bytes), read_only: false };
    env.open_drive(open).await.expect("created")
}

/// Why an order is refused, and the line that says so.
fn refusal(outcome: Result<(), DrivesError>) -> (DriveRefusal, String) {
    match outcome {
        Err(DrivesError::Refused { node: NODE, why, told }) => (why, told),
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn what_cannot_be_a_drive_of_the_unit_is_refused_with_its_name_and_nothing_changes() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 1).await;
        let other = Identity { id: ChainId([9; 16]), label: Label::new("unit 7").expect("short") };
        let foreign = created(&env, &named(&dir, "foreign"), 64 << 20).await;
        let chain = Chain::create(&env, foreign, other, ChainOptions::default()).await.expect("created");
        chain.close().await.expect("closed");
        let written = created(&env, &named(&dir, "written"), 1 << 20).await;
        let mut page = PageBuf::zeroed(4096);
        page.as_mut_slice().fill(7);
        written.write(8192, page.freeze(), Durability::Durable).await.expect("written");
        drop(written);
        ithaca_env::real::files::write(&dir.path().join("short"), b"notes").expect("written");
        let used = created(&env, &named(&dir, "used"), 1 << 20).await;
        let add = async |path: String| refusal(client.add_drives(NODE, vec![path], 0).await);
        for (path, why, part) in [
            ("drive".to_owned(), DriveRefusal::Impossible, "not an absolute path"),
            (named(&dir, "a+b"), DriveRefusal::Impossible, "a path with a +"),
            (named(&dir, "no/such/folder"), DriveRefusal::Unfit, "no such file"),
            (named(&dir, ""), DriveRefusal::Unfit, "directory"),
            (named(&dir, "short"), DriveRefusal::Unfit, "no drive"),
            (named(&dir, "foreign"), DriveRefusal::Unfit, "already holds chain"),
            (named(&dir, "written"), DriveRefusal::Unfit, "is not blank"),
            (named(&dir, "used"), DriveRefusal::Failed, "in use"),
        ] {
            let (found, told) = add(path.clone()).await;
            assert_eq!(found, why, "{told}");
            assert!(told.contains(&path) && told.contains(part), "{told}");
        }
        drop(used);
        let first = named(&dir, "unit-1.chain");
        let twice = client.add_drives(NODE, vec![named(&dir, "x"), named(&dir, "x")], 0).await;
        assert!(refusal(twice).1.contains("named twice"));
        let beside = client.mirror_drive(NODE, named(&dir, "none"), vec![named(&dir, "x")], 0).await;
        assert_eq!(refusal(beside).0, DriveRefusal::NoSuchDrive);
        let (why, told) = refusal(client.remove_drives(NODE, vec![first.clone()]).await);
        assert_eq!(why, DriveRefusal::Impossible, "{told}");
        assert!(told.contains(&first) && told.contains("the only drive"), "{told}");
        let (why, told) = refusal(client.remove_drives(NODE, vec![named(&dir, "x")]).await);
        assert_eq!(why, DriveRefusal::NoSuchDrive, "{told}");
        assert!(told.contains(&first), "it says which there are: {told}");
        let listed = client.drives(NODE).await.expect("listed");
        assert_eq!(listed.iter().map(|drive| drive.path.as_str()).collect::<Vec<_>>(), [first.as_str()]);
        assert!(!dir.path().join("x").exists(), "nothing was made for an order that is refused");
        append(&client, 0, 10).await;
    });
}

#[test]
fn a_unit_has_no_more_links_and_a_link_no_more_sides_than_a_chain_may_have() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 1).await;
        for number in 1..16 {
            let path = named(&dir, &format!("drive-{number}"));
            client.add_drives(NODE, vec![path], 1 << 20).await.expect("it is blank");
        }
        let (why, told) = refusal(client.add_drives(NODE, vec![named(&dir, "one-more")], 1 << 20).await);
        assert_eq!(why, DriveRefusal::Impossible, "{told}");
        assert!(told.contains("one-more") && told.contains("17 drives"), "{told}");
        let of = named(&dir, "drive-1");
        for number in 2..=4 {
            let side = vec![named(&dir, &format!("side-{number}"))];
            client.mirror_drive(NODE, of.clone(), side, 1 << 20).await.expect("it is blank");
        }
        let side = vec![named(&dir, "side-5")];
        let (why, told) = refusal(client.mirror_drive(NODE, of.clone(), side, 1 << 20).await);
        assert_eq!(why, DriveRefusal::Impossible, "{told}");
        assert!(told.contains("side-5") && told.contains("5 drives"), "{told}");
        let elsewhere = client.mirror_drive(NODE, of, vec![named(&dir, "drive-2")], 0).await;
        assert!(refusal(elsewhere).1.contains("drive-2: a drive of the unit already, of link 2"));
    });
}

#[test]
fn an_order_that_is_meant_for_another_node_is_refused_by_its_number() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 2).await;
        let who = Caller { client: ClientId(1), node: NODE, cluster: ClusterId::UNKNOWN };
        let deadline = env.now() + Duration::from_secs(10);
        let connection = Connection::open(&env, cluster.addrs()[0], who, deadline).await.expect("it serves");
        let change = DriveChange::Add { paths: vec![named(&dir, "drive")], create_bytes: 0 };
        let asked = ChangeDrives { node: NodeId(2), wait_ms: 0, change };
        let answer = connection.call::<_, DrivesChanged>(&env, Epoch(0), &asked, deadline).await;
        assert!(matches!(answer, Err(CallError::Refused(Refusal::WrongNode { node: NODE }))), "{answer:?}");
        // Each node has its own.
        client.add_drives(NodeId(2), vec![named(&dir, "drive")], 0).await.expect("it is blank");
        assert_eq!(client.drives(NodeId(2)).await.expect("listed").len(), 2);
        assert_eq!(client.drives(NODE).await.expect("listed").len(), 1);
        let nobody = client.drives(NodeId(9)).await;
        assert!(matches!(nobody, Err(DrivesError::NoNode { node: NodeId(9), .. })), "{nobody:?}");
    });
}

#[test]
fn a_cluster_that_is_stopped_while_a_drive_leaves_stops_soon_and_goes_on_with_it_when_it_is_started() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        client.add_drives(NODE, vec![named(&dir, "added")], 0).await.expect("it is blank");
        for round in 0..40 {
            let entries = (0..64).map(|_| client.append(Bytes::from(vec![round; 64 << 10])));
            for entry in entries.collect::<Vec<_>>() {
                entry.await.expect("there is room");
            }
        }
        let first = named(&dir, "unit-1.chain");
        let removing = client.clone();
        let leaving = first.clone();
        env.spawn(async move { removing.remove_drives(NODE, vec![leaving]).await });
        // Unless it has left before anybody looked.
        let is_staying = async || {
            let listed = client.drives(NODE).await.expect("listed");
            listed.len() > 1 && listed.iter().all(|drive| !drive.is_leaving)
        };
        while is_staying().await {}
        let tail = client.check().await.expect("it serves").tail;
        cluster.stop().await;
        let cluster = crate::worlds::restart(&env, options(dir.path(), 1)).await;
        let client = crate::worlds::connect(&env, &cluster).await;
        while client.drives(NODE).await.expect("listed").len() > 1 {
            env.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(client.drives(NODE).await.expect("listed")[0].path, named(&dir, "added"));
        let entries = crate::worlds::read_all(&client, 0).await;
        assert_eq!(entries.len() as u64, tail.0);
        assert!(entries.iter().all(|entry| entry.data.len() == 64 << 10));
    });
}

#[test]
fn a_node_of_several_changes_its_drives_while_the_others_go_on_and_comes_back_with_them() {
    run(|env, _| async move {
        let mut cluster = Cluster::form(&env, 3, 2, |dir, id| node_options(dir, id, 64)).await;
        let drives = TempDir::new().expect("a directory");
        let added = named(&drives, "added");
        let client = cluster.client.clone();
        client.add_drives(NodeId(2), vec![added.clone()], 0).await.expect("it is blank");
        let mut positions = Vec::new();
        for number in 0..300_u64 {
            let appended = client.append(Bytes::from(number.to_le_bytes().repeat(1024))).await;
            positions.push(appended.expect("all serve"));
        }
        cluster.stop(2).await;
        cluster.until(&env, "node 2 is missed", |layout| layout.holders().all(|unit| unit.0 != 2)).await;
        cluster.start(&env, 2, |dir, id| node_options(dir, id, 64)).await;
        cluster
            .until(&env, "node 2 is back", |layout| layout.is_whole() && layout.holders().count() == 3)
            .await;
        let first = cluster.drive(2).display().to_string();
        let options = ClientOptions {
            endpoints: cluster.addrs.iter().map(|&(_, addr)| addr).collect(),
            timeout: Duration::from_secs(60),
            ..ClientOptions::default()
        };
        let client = Client::connect(&env, options).await.expect("it serves");
        client.remove_drives(NodeId(2), vec![first]).await.expect("the other one has room");
        let listed = client.drives(NodeId(2)).await.expect("listed");
        assert_eq!(listed.iter().map(|drive| drive.path.as_str()).collect::<Vec<_>>(), [added.as_str()]);
        for (&pos, number) in positions.iter().zip(0_u64..) {
            let found = client.read(pos).await.expect("it is there").data;
            assert_eq!(found, Bytes::from(number.to_le_bytes().repeat(1024)), "{pos}");
        }
    });
}
