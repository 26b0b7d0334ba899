//! A struct of a user's own as an object.

use ithaca_object::{ObjectError, Tx, object_type};
use serde::{Deserialize, Serialize};

use crate::worlds::run;

/// Somebody who logs in and has some money.
#[derive(Clone, Default, Serialize, Deserialize)]
struct User {
    password: String,
    last_login: u64,
    money: u64,
}

#[object_type]
impl User {
    /// When it was that the user logged in last.
    #[accessor]
    fn last_login(&self) -> u64 {
        self.last_login
    }

    #[mutator]
    fn set_password(&mut self, password: String) {
        self.password = password;
    }

    #[accessor_mutator]
    fn login(&mut self, password: String, time: u64) -> bool {
        let is_right = self.password == password;
        if is_right {
            self.last_login = time;
        }
        is_right
    }

    #[accessor]
    fn has(&self, amount: u64) -> bool {
        self.money >= amount
    }

    #[accessor_mutator]
    fn pay(&mut self, amount: u64) -> u64 {
        self.money = self.money.saturating_sub(amount);
        self.money
    }

    #[mutator]
    fn earn(&mut self, amount: u64) {
        self.money += amount;
    }

    #[transactional]
    async fn give(this: &UserHandle, tx: &Tx, to: UserHandle, amount: u64) -> Result<bool, ObjectError> {
        if !this.has(amount).await? {
            return Ok(false);
        }
        this.pay(amount).await?;
        to.within(tx).earn(amount).await?;
        Ok(true)
    }
}

#[test]
fn methods_of_a_struct_are_those_of_a_replicated_object() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let (here, there) =
            (UserHandle::open(&one, "ann").expect("opened"), UserHandle::open(&two, "ann").expect("opened"));
        here.set_password("secret".into()).await.expect("set");
        assert_eq!(there.login("guess".into(), 7).await, Ok(false));
        assert_eq!(there.login("secret".into(), 8).await, Ok(true));
        assert_eq!(here.last_login().await, Ok(8));
        let tail = one.client().check().await.expect("it serves").tail;
        there.login("secret".into(), 9).await.expect("called");
        assert_eq!((here.at(tail).last_login().await, here.last_login().await), (Ok(8), Ok(9)));
    });
}

#[test]
fn a_transactional_method_changes_several_objects_or_none() {
    run(async |world| {
        let program = world.program().await;
        let ann = UserHandle::open(&program, "ann").expect("opened");
        let bob = UserHandle::open(&program, "bob").expect("opened");
        ann.earn(10).await.expect("earned");
        assert_eq!(ann.give(bob.clone(), 7).await, Ok(true));
        assert_eq!(ann.give(bob.clone(), 7).await, Ok(false));
        assert_eq!((ann.has(3).await, ann.has(4).await, bob.has(7).await), (Ok(true), Ok(false), Ok(true)));
    });
}
