//! A volume: blocks of 4 KiB with transactions and old versions, on the same chain as the log.
//!
//! Source: Isotope (transactions at the block layer) and Yogurt (old versions as a way to faster reads).
