//! Which namespaces go on borrowing the manager's identity: those whose objects did so when this manager first started. A ConfigMap
//! in the manager's namespace holds them, where only its administrators write.

pub mod act;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use slipway_azure::credential::Borrowed;

/// The ConfigMap: by namespace, the client ids of the identities, with commas between them.
pub const CONFIG_MAP: &str = "slipway-borrowed-identities";

/// What the ConfigMap says.
pub fn read(map: &ConfigMap) -> Borrowed {
    let all = map.data.iter().flatten();
    all.flat_map(|(namespace, clients)| {
        let clients = clients
            .split(',')
            .map(str::trim)
            .filter(|client| !client.is_empty());
        clients.map(|client| (namespace.clone(), client.to_owned()))
    })
    .collect()
}

/// The data of the ConfigMap.
pub fn written(borrowed: &Borrowed) -> BTreeMap<String, String> {
    let mut data: BTreeMap<String, String> = BTreeMap::new();
    for (namespace, client) in borrowed {
        let clients = data.entry(namespace.clone()).or_default();
        if !clients.is_empty() {
            clients.push(',');
        }
        clients.push_str(client);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let borrowed: Borrowed = [("a", "one"), ("a", "two"), ("b", "one")]
            .map(|(namespace, client)| (namespace.to_owned(), client.to_owned()))
            .into();
        let data = written(&borrowed);
        assert_eq!(data["a"], "one,two");
        let map = ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        };
        assert_eq!(read(&map), borrowed);
        assert_eq!(read(&ConfigMap::default()), Borrowed::new());
    }
}
