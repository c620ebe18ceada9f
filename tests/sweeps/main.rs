//! Fault sweeps over whole providers: every call, every fault, the same end. A sample by default, everything with
//! `SLIPWAY_TEST_FULL=1`.

mod toy_fleet;
