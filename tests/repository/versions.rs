//! The page of versions names what is pinned.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The version of a module that a `go.mod` asks for.
fn module(manifest: &str, name: &str) -> String {
    let text = read(manifest);
    text.lines()
        .find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.next()?;
            words
                .next()
                .filter(|word| word.starts_with('v'))
                .map(str::to_owned)
        })
        .unwrap_or_else(|| panic!("{manifest} does not ask for {name}"))
}

#[test]
fn the_page_of_versions_names_what_is_pinned() {
    let page = read("docs/versions.md");
    for (manifest, name) in [
        ("parts/go.mod", "k8s.io/kubernetes"),
        ("parts/go.mod", "go.etcd.io/etcd/server/v3"),
        ("parts/go.mod", "sigs.k8s.io/cluster-api"),
        ("parts/capz/go.mod", "sigs.k8s.io/cluster-api-provider-azure"),
        ("parts/capz/go.mod", "sigs.k8s.io/cluster-api"),
        ("parts/aso/go.mod", "github.com/Azure/azure-service-operator/v2"),
        ("parts/karpenter/go.mod", "sigs.k8s.io/karpenter"),
    ] {
        let version = module(manifest, name);
        assert!(
            page.contains(&version),
            "docs/versions.md does not name {name} {version}"
        );
    }
    let oldest = read("Cargo.toml");
    let oldest = oldest
        .lines()
        .find(|line| line.starts_with("k8s-openapi"))
        .and_then(|line| line.split("\"v1_").nth(1))
        .and_then(|rest| rest.split('"').next())
        .expect("a version of Kubernetes");
    assert!(page.contains(&format!("1.{oldest} and newer")), "1.{oldest}");
}

/// `v1api20240402preview` as Azure writes it.
fn api_version(asos: &str) -> String {
    let digits = &asos["v1api".len()..];
    let (date, rest) = digits.split_at(8);
    let preview = if rest.is_empty() { "" } else { "-preview" };
    format!("{}-{}-{}{preview}", &date[..4], &date[4..6], &date[6..])
}

#[test]
fn the_page_of_versions_names_every_api_version_that_aks_is_asked_with() {
    let page = read("docs/versions.md");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/aks/src");
    let mut found = 0;
    for path in super::conditions::sources(&folder) {
        let text = fs::read_to_string(path).unwrap_or_default();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for rest in text.split("/v1api").skip(1) {
            let word: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            let version = api_version(&format!("v1api{word}"));
            assert!(
                page.contains(&version),
                "docs/versions.md does not name {version}"
            );
            found += 1;
        }
    }
    assert!(found >= 5, "{found}");
}
