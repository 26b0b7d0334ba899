//! The notary of a unit's drives: the data directory's register.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{ChainId, Notary};
use ithaca_env::Env;

use super::Remembered;
use crate::pos::NodeId;
use crate::server::register::Purpose;

/// The first generation of a chain: every drive of it knows that one, or none of its own.
const FIRST_GENERATION: u64 = 1;
/// A register that does not answer for so long is not waited for: the chain goes on without a notary.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub(in super::super) struct UnitNotary {
    env: Env,
    remembered: Rc<Remembered>,
    node: NodeId,
    chain: ChainId,
}

impl UnitNotary {
    /// Of the drives of the unit of `node`, whose chain is this one.
    pub(in super::super) fn new(
        env: &Env,
        remembered: &Rc<Remembered>,
        node: NodeId,
        chain: ChainId,
    ) -> Rc<Self> {
        Rc::new(Self { env: env.clone(), remembered: Rc::clone(remembered), node, chain })
    }
}

impl Notary for UnitNotary {
    fn name(&self) -> String {
        self.remembered.data.join(Purpose::Drives.file_name()).display().to_string()
    }

    fn generation(&self) -> u64 {
        self.remembered.generation(self.node, self.chain)
    }

    fn tell(&self, generation: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        if generation <= self.generation().max(FIRST_GENERATION) {
            return Box::pin(async {});
        }
        let (remembered, node, chain) = (Rc::clone(&self.remembered), self.node, self.chain);
        let writing = self.env.spawn(async move { remembered.note(node, chain, generation).await });
        let env = self.env.clone();
        Box::pin(async move {
            let failed = match env.timeout(PATIENCE, writing.join()).await {
                Ok(Some(Ok(()))) => return,
                Ok(Some(Err(error))) => error.to_string(),
                _ => format!("no answer within {PATIENCE:?}"),
            };
            tracing::warn!(
                node = node.0,
                generation,
                error = failed,
                "the data directory does not know that the unit's drives have changed: give a start all of them"
            );
        })
    }
}
