//! A volume in a file of the real file system.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::OpenDrive;
use ithaca_env::real;
use ithaca_env::sim::Random;
use ithaca_volume::{Durability, TxOptions, Version, Volume, VolumeOptions};

use crate::world::{block, numbers, small_settings};

#[test]
fn a_volume_in_a_file_is_opened_again_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("volume.chain");
    let options = VolumeOptions { settings: small_settings(), ..VolumeOptions::new(200) };
    let expected = Rc::new(std::cell::RefCell::new(vec![0; 200]));
    for life in 0..3u64 {
        let (path, options, expected) = (path.clone(), options.clone(), Rc::clone(&expected));
        real::run(async move |env| {
            let open = OpenDrive { path, create_bytes: Some(64 << 10), read_only: false };
            let drive = env.open_drive(open).await.expect("the file opens");
            let volume = match life {
                0 => Volume::create(&env, drive, options).await,
                _ => Volume::open(&env, drive, options.settings).await,
            };
            let volume = volume.expect("it opens");
            let found = numbers(&volume.read(0, 200).await.expect("no damage"));
            assert_eq!(found, *expected.borrow());
            let mut rng = Random::new(life);
            for round in 0..500 {
                let (at, number) = (rng.below(200), 1 + life * 1000 + round);
                volume.write(at, block(number), Durability::Acknowledged).await.expect("room");
                expected.borrow_mut()[at as usize] = number;
            }
            let moved = volume.transact(TxOptions::default(), async |tx| {
                let data = tx.read(3, 1).await?;
                tx.write(4, Bytes::clone(&data))
            });
            let ((), version) = moved.await.expect("nobody else is there");
            assert_eq!(version, Version((life + 1) * 501));
            let three = expected.borrow()[3];
            expected.borrow_mut()[4] = three;
            volume.close().await.expect("no fault");
        });
    }
}
