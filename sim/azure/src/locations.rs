//! Azure's locations: their names, and which of them have availability zones.

/// Locations of the public, US Government and China clouds with three zones.
const ZONED: &[&str] = &[
    "australiaeast",
    "austriaeast",
    "belgiumcentral",
    "brazilsouth",
    "canadacentral",
    "centralindia",
    "centralus",
    "chilecentral",
    "chinanorth3",
    "denmarkeast",
    "eastasia",
    "eastus",
    "eastus2",
    "francecentral",
    "germanywestcentral",
    "indonesiacentral",
    "israelcentral",
    "italynorth",
    "japaneast",
    "japanwest",
    "koreacentral",
    "malaysiawest",
    "mexicocentral",
    "newzealandnorth",
    "northeurope",
    "norwayeast",
    "polandcentral",
    "qatarcentral",
    "southafricanorth",
    "southcentralus",
    "southeastasia",
    "spaincentral",
    "swedencentral",
    "switzerlandnorth",
    "uaenorth",
    "uksouth",
    "usgovvirginia",
    "westeurope",
    "westus2",
    "westus3",
];

const PLAIN: &[&str] = &[
    "australiacentral",
    "australiacentral2",
    "australiasoutheast",
    "brazilsoutheast",
    "canadaeast",
    "centraluseuap",
    "chinaeast",
    "chinaeast2",
    "chinaeast3",
    "chinanorth",
    "chinanorth2",
    "eastus2euap",
    "francesouth",
    "germanynorth",
    "jioindiacentral",
    "jioindiawest",
    "koreasouth",
    "northcentralus",
    "norwaywest",
    "southafricawest",
    "southindia",
    "swedensouth",
    "switzerlandwest",
    "uaecentral",
    "ukwest",
    "usgovarizona",
    "usgovtexas",
    "westcentralus",
    "westindia",
    "westus",
];

/// By a name without spaces, in lower case.
pub fn exists(location: &str) -> bool {
    has_zones(location) || PLAIN.contains(&location)
}

pub fn has_zones(location: &str) -> bool {
    ZONED.contains(&location)
}

/// As a refusal lists them.
pub fn all() -> String {
    let mut names: Vec<&str> = ZONED.iter().chain(PLAIN).copied().collect();
    names.sort_unstable();
    names.join(",")
}
