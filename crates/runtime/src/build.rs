//! Which build this is. `cargo xtask package` says the commit and its date by environment; a build by hand knows neither.

/// Version, commit and date of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub version: &'static str,
    /// The commit it was built from.
    pub commit: Option<&'static str>,
    /// When that commit was made, in RFC 3339: the same source gives the same program, whenever it is built.
    pub date: Option<&'static str>,
}

/// This build.
pub const THIS: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("SLIPWAY_COMMIT"),
    date: option_env!("SLIPWAY_COMMIT_DATE"),
};
