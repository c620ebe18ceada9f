//! What kinds beside those of clusters hand out under `operatorSpec.secrets` and `operatorSpec.configMaps`: members of their body, and
//! keys that an action of theirs answers with.

use serde_json::Value;

/// Where a value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOut {
    /// In the resource's body, by JSON pointer.
    Shown(&'static str),
    /// In the answer of an action.
    Listed(Listed),
}

/// A value in the answer of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The last part of the path that is posted to.
    pub action: &'static str,
    pick: Pick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    /// By JSON pointer.
    At(&'static str),
    /// Below the member of a list that has this name.
    Named {
        list: &'static str,
        by: &'static str,
        name: &'static str,
        at: &'static str,
    },
}

impl Listed {
    /// The value in an answer.
    pub fn of(&self, answer: &Value) -> Option<String> {
        let found = match self.pick {
            Pick::At(pointer) => answer.pointer(pointer)?,
            Pick::Named { list, by, name, at } => {
                let list = answer.pointer(list)?.as_array()?;
                // A key for queries that was never given a name is the default one.
                let is_it = |one: &&Value| one[by].as_str().unwrap_or("default") == name;
                list.iter().find(is_it)?.pointer(at)?
            }
        };
        Some(found.as_str()?.to_owned()).filter(|text| !text.is_empty())
    }
}

type Values = &'static [(&'static str, HandedOut)];

const fn shown(name: &'static str, pointer: &'static str) -> (&'static str, HandedOut) {
    (name, HandedOut::Shown(pointer))
}

const fn at(name: &'static str, action: &'static str, pointer: &'static str) -> (&'static str, HandedOut) {
    let pick = Pick::At(pointer);
    (name, HandedOut::Listed(Listed { action, pick }))
}

const fn named(
    name: &'static str,
    action: &'static str,
    (list, by, member): (&'static str, &'static str, &'static str),
    at: &'static str,
) -> (&'static str, HandedOut) {
    let pick = Pick::Named {
        list,
        by,
        name: member,
        at,
    };
    (name, HandedOut::Listed(Listed { action, pick }))
}

const fn keys(action: &'static str) -> [(&'static str, HandedOut); 4] {
    [
        at("primaryKey", action, "/primaryKey"),
        at("secondaryKey", action, "/secondaryKey"),
        at("primaryConnectionString", action, "/primaryConnectionString"),
        at("secondaryConnectionString", action, "/secondaryConnectionString"),
    ]
}

const KEYS: &[(&str, HandedOut)] = &keys("listKeys");
const ROOT_KEYS: &[(&str, HandedOut)] = &keys(ROOT);
const HUB_KEYS: &[(&str, HandedOut)] = &keys("AuthorizationRules/DefaultFullSharedAccessSignature/listKeys");
const TWO_KEYS: &[(&str, HandedOut)] = &[
    at("primaryKey", "listKeys", "/primaryKey"),
    at("secondaryKey", "listKeys", "/secondaryKey"),
];
const NUMBERED_KEYS: &[(&str, HandedOut)] =
    &[at("key1", "listKeys", "/key1"), at("key2", "listKeys", "/key2")];
const FQDN: &[(&str, HandedOut)] = &[shown(
    "fullyQualifiedDomainName",
    "/properties/fullyQualifiedDomainName",
)];
/// The rule that every namespace of a bus has.
const ROOT: &str = "AuthorizationRules/RootManageSharedAccessKey/listKeys";

const fn store(member: &'static str) -> (&'static str, &'static str, &'static str) {
    ("/value", "name", member)
}

const fn hub(member: &'static str) -> (&'static str, &'static str, &'static str) {
    ("/value", "keyName", member)
}

const fn account(member: &'static str) -> (&'static str, &'static str, &'static str) {
    ("/keys", "keyName", member)
}

const fn registry(member: &'static str) -> (&'static str, &'static str, &'static str) {
    ("/containerRegistryCredentials/passwords", "name", member)
}

const ENDPOINTS: [(&str, HandedOut); 6] = [
    shown("blobEndpoint", "/properties/primaryEndpoints/blob"),
    shown("queueEndpoint", "/properties/primaryEndpoints/queue"),
    shown("tableEndpoint", "/properties/primaryEndpoints/table"),
    shown("fileEndpoint", "/properties/primaryEndpoints/file"),
    shown("webEndpoint", "/properties/primaryEndpoints/web"),
    shown("dfsEndpoint", "/properties/primaryEndpoints/dfs"),
];

/// By group without its domain, kind, and name under `operatorSpec.secrets`.
const SECRETS: &[(&str, &str, Values)] = &[
    (
        "apimanagement",
        "Subscription",
        &[
            at("primaryKey", "listSecrets", "/primaryKey"),
            at("secondaryKey", "listSecrets", "/secondaryKey"),
        ],
    ),
    (
        "apimanagement",
        "ServiceGateway",
        &[
            at("primaryKey", "listKeys", "/primary"),
            at("secondaryKey", "listKeys", "/secondary"),
        ],
    ),
    (
        "appconfiguration",
        "ConfigurationStore",
        &[
            named("primaryKeyID", "listKeys", store("Primary"), "/id"),
            named("primaryKey", "listKeys", store("Primary"), "/value"),
            named(
                "primaryConnectionString",
                "listKeys",
                store("Primary"),
                "/connectionString",
            ),
            named("secondaryKeyID", "listKeys", store("Secondary"), "/id"),
            named("secondaryKey", "listKeys", store("Secondary"), "/value"),
            named(
                "secondaryConnectionString",
                "listKeys",
                store("Secondary"),
                "/connectionString",
            ),
            named(
                "primaryReadOnlyKeyID",
                "listKeys",
                store("Primary Read Only"),
                "/id",
            ),
            named(
                "primaryReadOnlyKey",
                "listKeys",
                store("Primary Read Only"),
                "/value",
            ),
            named(
                "primaryReadOnlyConnectionString",
                "listKeys",
                store("Primary Read Only"),
                "/connectionString",
            ),
            named(
                "secondaryReadOnlyKeyID",
                "listKeys",
                store("Secondary Read Only"),
                "/id",
            ),
            named(
                "secondaryReadOnlyKey",
                "listKeys",
                store("Secondary Read Only"),
                "/value",
            ),
            named(
                "secondaryReadOnlyConnectionString",
                "listKeys",
                store("Secondary Read Only"),
                "/connectionString",
            ),
        ],
    ),
    (
        "cache",
        "Redis",
        &[
            at("primaryKey", "listKeys", "/primaryKey"),
            at("secondaryKey", "listKeys", "/secondaryKey"),
            shown("hostName", "/properties/hostName"),
            shown("port", "/properties/port"),
            shown("sslPort", "/properties/sslPort"),
        ],
    ),
    ("cache", "RedisEnterpriseDatabase", TWO_KEYS),
    ("cognitiveservices", "Account", NUMBERED_KEYS),
    ("communication", "CommunicationService", KEYS),
    ("dbformariadb", "Server", FQDN),
    ("dbformysql", "FlexibleServer", FQDN),
    ("dbforpostgresql", "FlexibleServer", FQDN),
    (
        "devices",
        "IotHub",
        &[
            named(
                "iotHubOwnerPrimaryKey",
                "listkeys",
                hub("iothubowner"),
                "/primaryKey",
            ),
            named(
                "iotHubOwnerSecondaryKey",
                "listkeys",
                hub("iothubowner"),
                "/secondaryKey",
            ),
            named("servicePrimaryKey", "listkeys", hub("service"), "/primaryKey"),
            named("serviceSecondaryKey", "listkeys", hub("service"), "/secondaryKey"),
            named("devicePrimaryKey", "listkeys", hub("device"), "/primaryKey"),
            named("deviceSecondaryKey", "listkeys", hub("device"), "/secondaryKey"),
            named(
                "registryReadPrimaryKey",
                "listkeys",
                hub("registryRead"),
                "/primaryKey",
            ),
            named(
                "registryReadSecondaryKey",
                "listkeys",
                hub("registryRead"),
                "/secondaryKey",
            ),
            named(
                "registryReadWritePrimaryKey",
                "listkeys",
                hub("registryReadWrite"),
                "/primaryKey",
            ),
            named(
                "registryReadWriteSecondaryKey",
                "listkeys",
                hub("registryReadWrite"),
                "/secondaryKey",
            ),
        ],
    ),
    (
        "documentdb",
        "DatabaseAccount",
        &[
            at("primaryMasterKey", "listKeys", "/primaryMasterKey"),
            at("secondaryMasterKey", "listKeys", "/secondaryMasterKey"),
            at(
                "primaryReadonlyMasterKey",
                "listKeys",
                "/primaryReadonlyMasterKey",
            ),
            at(
                "secondaryReadonlyMasterKey",
                "listKeys",
                "/secondaryReadonlyMasterKey",
            ),
            shown("documentEndpoint", "/properties/documentEndpoint"),
        ],
    ),
    ("eventgrid", "Topic", NUMBERED_KEYS),
    ("eventhub", "Namespace", ROOT_KEYS),
    ("eventhub", "NamespacesAuthorizationRule", KEYS),
    ("eventhub", "NamespacesEventhubsAuthorizationRule", KEYS),
    (
        "machinelearningservices",
        "Workspace",
        &[
            at(
                "appInsightsInstrumentationKey",
                "listKeys",
                "/appInsightsInstrumentationKey",
            ),
            at("userStorageKey", "listKeys", "/userStorageKey"),
            at(
                "primaryNotebookAccessKey",
                "listKeys",
                "/notebookAccessKeys/primaryAccessKey",
            ),
            at(
                "secondaryNotebookAccessKey",
                "listKeys",
                "/notebookAccessKeys/secondaryAccessKey",
            ),
            at(
                "containerRegistryUserName",
                "listKeys",
                "/containerRegistryCredentials/username",
            ),
            named(
                "containerRegistryPassword",
                "listKeys",
                registry("password"),
                "/value",
            ),
            named(
                "containerRegistryPassword2",
                "listKeys",
                registry("password2"),
                "/value",
            ),
        ],
    ),
    ("notificationhubs", "Namespace", ROOT_KEYS),
    ("notificationhubs", "NotificationHub", HUB_KEYS),
    (
        "operationalinsights",
        "Workspace",
        &[
            at("primarySharedKey", "sharedKeys", "/primarySharedKey"),
            at("secondarySharedKey", "sharedKeys", "/secondarySharedKey"),
        ],
    ),
    (
        "redhatopenshift",
        "OpenShiftCluster",
        &[
            at("adminCredentials", "listAdminCredentials", "/kubeconfig"),
            at("username", "listCredentials", "/kubeadminUsername"),
            at("password", "listCredentials", "/kubeadminPassword"),
        ],
    ),
    (
        "search",
        "SearchService",
        &[
            at("adminPrimaryKey", "listAdminKeys", "/primaryKey"),
            at("adminSecondaryKey", "listAdminKeys", "/secondaryKey"),
            named("queryKey", "listQueryKeys", ("/value", "name", "default"), "/key"),
        ],
    ),
    (
        "servicebus",
        "Namespace",
        &[
            shown("endpoint", "/properties/serviceBusEndpoint"),
            at("primaryKey", ROOT, "/primaryKey"),
            at("secondaryKey", ROOT, "/secondaryKey"),
            at("primaryConnectionString", ROOT, "/primaryConnectionString"),
            at("secondaryConnectionString", ROOT, "/secondaryConnectionString"),
        ],
    ),
    ("servicebus", "NamespacesAuthorizationRule", KEYS),
    ("servicebus", "TopicAuthorizationRule", KEYS),
    ("signalrservice", "SignalR", KEYS),
    (
        "storage",
        "StorageAccount",
        &[
            named("key1", "listKeys", account("key1"), "/value"),
            named("key2", "listKeys", account("key2"), "/value"),
            ENDPOINTS[0],
            ENDPOINTS[1],
            ENDPOINTS[2],
            ENDPOINTS[3],
            ENDPOINTS[4],
            ENDPOINTS[5],
        ],
    ),
];

/// By group without its domain, kind, and name under `operatorSpec.configMaps`.
const CONFIG: &[(&str, &str, Values)] = &[
    (
        "app",
        "ContainerApp",
        &[
            shown("eventStreamEndpoint", "/properties/eventStreamEndpoint"),
            shown("fqdn", "/properties/latestRevisionFqdn"),
        ],
    ),
    (
        "communication",
        "CommunicationService",
        &[shown("hostName", "/properties/hostName")],
    ),
    (
        "dataprotection",
        "BackupVault",
        &[shown("principalId", "/identity/principalId")],
    ),
    (
        "dbformysql",
        "FlexibleServer",
        &[
            shown("administratorLogin", "/properties/administratorLogin"),
            shown("fullyQualifiedDomainName", "/properties/fullyQualifiedDomainName"),
        ],
    ),
    ("dbforpostgresql", "FlexibleServer", FQDN),
    ("eventgrid", "Topic", &[shown("endpoint", "/properties/endpoint")]),
    (
        "insights",
        "Component",
        &[
            shown("connectionString", "/properties/ConnectionString"),
            shown("instrumentationKey", "/properties/InstrumentationKey"),
        ],
    ),
    (
        "kusto",
        "Cluster",
        &[
            shown("clusterPrincipalId", "/identity/principalId"),
            shown("clusterTenantId", "/identity/tenantId"),
        ],
    ),
    (
        "machinelearningservices",
        "Registry",
        &[
            shown("discoveryUrl", "/properties/discoveryUrl"),
            shown("mlFlowRegistryUri", "/properties/mlFlowRegistryUri"),
        ],
    ),
    (
        "notificationhubs",
        "Namespace",
        &[shown("serviceBusEndpoint", "/properties/serviceBusEndpoint")],
    ),
    (
        "search",
        "SearchService",
        &[
            shown("identityPrincipalId", "/identity/principalId"),
            shown("identityTenantId", "/identity/tenantId"),
        ],
    ),
    ("sql", "Server", FQDN),
    ("storage", "StorageAccount", &ENDPOINTS),
];

fn of(table: &'static [(&str, &str, Values)], group: &str, kind: &str) -> Values {
    let group = group.strip_suffix(".azure.com").unwrap_or(group);
    let found = table
        .iter()
        .find(|(known, its_kind, _)| *known == group && *its_kind == kind);
    found.map_or(&[], |(_, _, values)| values)
}

/// What a kind hands out under `operatorSpec.secrets`, by name.
pub fn secrets(group: &str, kind: &str) -> Values {
    of(SECRETS, group, kind)
}

/// What a kind hands out under `operatorSpec.configMaps`, by name.
pub fn config(group: &str, kind: &str) -> Values {
    of(CONFIG, group, kind)
}

/// Every kind that hands something out, by group without its domain.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    SECRETS
        .iter()
        .chain(CONFIG)
        .map(|(group, kind, _)| (*group, *kind))
}
