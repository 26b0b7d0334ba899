//! Whether views of one object differ, which they must not: by digests of their states, in records and beside checkpoints.
//!
//! * They are compared as long as everything that a state came of goes back to the bytes that it came of: then the digest is a function of
//!   bytes of the log. The first call of another version, or of a type without an order, ends that for the view, and for those that begin at
//!   its checkpoints: what they would compare is no longer what the log says.
//! * A digest is mostly one of an encoded state, and a version whose objects have another field encodes the same state as something else. So
//!   a digest has 16 bits of what its maker encodes an empty object as, and those of another form are not compared.

use ithaca_log::pos::LogPos;

use super::{FaultKind, View};
use crate::object::{Back, Object, digest_of_state};
use crate::record::Record;

/// The bits of a digest that are those of the form; the others are those of the state.
const FORM_BITS: u64 = 0xffff << 48;

/// What this version encodes the empty object as: 16 bits of a digest.
pub(super) fn form_of(empty: &impl Object) -> u64 {
    digest_of_state(empty) & FORM_BITS
}

/// The digest of a state, for others to compare who have the same form.
pub(super) fn in_form(form: u64, digest: u64) -> u64 {
    form | (digest ^ digest >> 48) & !FORM_BITS
}

/// Whether a digest is of this form.
pub(super) fn is_in(form: u64, digest: u64) -> bool {
    digest & FORM_BITS == form
}

impl<O: Object> View<O> {
    /// Whether digests are taken and compared.
    pub(super) fn compares(&self) -> bool {
        self.back == Back::Same
    }

    /// The digest of the newest state for others to compare; 0 if that would say nothing.
    pub(crate) fn digest_to_compare(&self) -> u64 {
        if self.compares() { in_form(self.form, self.state.digest()) } else { 0 }
    }

    /// Whether `theirs`, of a view of the same records, may be of this view's state: as far as that can be told.
    pub(crate) fn may_be(&self, theirs: u64) -> bool {
        !self.is_comparable(theirs) || theirs == self.digest_to_compare()
    }

    /// Compares the state as it was below `upto` with that of a checkpoint. One that differs stops the view where it is; what
    /// the view does not go back to is not compared. Gives whether they are the same, as far as that is known.
    pub fn compare_with_checkpoint(&mut self, upto: LogPos, theirs: u64) -> bool {
        if !self.is_comparable(theirs) {
            return true;
        }
        let Ok(ours) = self.read_at(upto, &[], |state, _| state.digest()) else { return true };
        let fault = self.difference(upto, theirs, in_form(self.form, ours));
        let is_same = fault.is_none();
        fault.map(|kind| self.stop(self.upto, kind));
        is_same
    }

    /// What clients saw who have written its records is not compared with it, as it may lack something that they had. A view that begins at its
    /// checkpoint compares itself with later ones.
    pub(crate) fn compare_nothing(&mut self) {
        self.is_incomplete = true;
        self.digests.clear();
    }

    /// Whether the record's client saw another state than this view did.
    pub(super) fn compare(&self, record: &Record) -> Option<FaultKind> {
        let check = record.checks.iter().find(|check| check.stream == self.stream)?;
        let (pos, ours) = self.digests.iter().find(|(pos, _)| *pos == check.pos)?;
        self.difference(*pos, check.digest, *ours).filter(|_| self.is_comparable(check.digest))
    }

    fn is_comparable(&self, theirs: u64) -> bool {
        self.compares() && theirs != 0 && is_in(self.form, theirs)
    }

    fn difference(&self, pos: LogPos, theirs: u64, ours: u64) -> Option<FaultKind> {
        let (theirs, ours) = (theirs & !FORM_BITS, ours & !FORM_BITS);
        (theirs != ours).then_some(FaultKind::Diverged { pos, theirs, ours })
    }
}
