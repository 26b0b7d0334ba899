//! A hash of one number, for whoever spreads things evenly and needs the same spread everywhere.

/// The odd number that SplitMix64 steps by.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit. Not for what an adversary chooses.
pub fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(STEP);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
