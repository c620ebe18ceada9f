//! Whatever files and commands hold, they stay the content of that file and the text of that command: the rendered
//! cloud-config is read back with another YAML parser.

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use serde::Deserialize;
use slipway_k3s::{
    api::{AgentConfig, File, KThreesConfigSpec, ServerConfig},
    bootstrap::render::{Facts, Role, render},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudConfig {
    write_files: Vec<WriteFile>,
    runcmd: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    path: String,
    encoding: Option<String>,
    owner: Option<String>,
    permissions: Option<String>,
    content: String,
}

/// What cloud-init's templating makes of the literals we write. Anything else it would read is a failure here.
fn templated(userdata: &str) -> String {
    let mut out = String::new();
    let mut rest = userdata;
    while let Some(at) = rest
        .find("{{")
        .into_iter()
        .chain(rest.find("{%"))
        .chain(rest.find("{#"))
        .min()
    {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let literal = ["{{", "{%", "{#"]
            .iter()
            .map(|open| (format!("{{{{ '{open}' }}}}"), *open))
            .find(|(written, _)| rest.starts_with(written.as_str()));
        let (written, open) = literal.unwrap_or_else(|| panic!("templating would read {:?}", rest.get(..40)));
        out.push_str(open);
        rest = &rest[written.len()..];
    }
    out.push_str(rest);
    out
}

fn hostile_text() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("\n".to_owned()),
        Just("\n  - reboot".to_owned()),
        Just("\nruncmd:\n  - evil".to_owned()),
        Just("\n-   path: /etc/shadow".to_owned()),
        Just("      ".to_owned()),
        Just("\t".to_owned()),
        Just("\r\n".to_owned()),
        Just("{{ .Values.x }}".to_owned()),
        Just("{% raw %}".to_owned()),
        Just("{# c #}".to_owned()),
        Just("{{".to_owned()),
        Just("{{{".to_owned()),
        Just(": ".to_owned()),
        Just(" #".to_owned()),
        Just("'".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just("---\n".to_owned()),
        Just("...\n".to_owned()),
        Just("\u{85}".to_owned()),
        Just("\u{2028}".to_owned()),
        Just("\u{feff}".to_owned()),
        Just("\u{0}".to_owned()),
        Just("😀".to_owned()),
        Just("|".to_owned()),
        Just("&a *a !b".to_owned()),
        "[a-z ]{0,8}",
        any::<char>().prop_map(|character| character.to_string()),
    ];
    prop::collection::vec(pieces, 0..10).prop_map(|pieces| pieces.concat())
}

/// What a literal block makes of a text's last line breaks: exactly one, if there is a text.
fn clipped(text: &str) -> String {
    let trimmed = text.trim_end_matches('\n');
    if trimmed.is_empty() {
        String::new()
    } else {
        format!("{trimmed}\n")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("SLIPWAY_TEST_FULL").is_some() { 20_000 } else { 1_500 }, ..ProptestConfig::default() })]

    /// S-22: content that templating or YAML would read survives.
    #[test]
    fn hostile_contents_and_commands_stay_what_they_are(
        contents in prop::collection::vec(prop_oneof![
            hostile_text().prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..40),
        ], 0..4),
        paths in prop::collection::vec(hostile_text(), 4),
        owner in hostile_text(),
        permissions in hostile_text(),
        commands in prop::collection::vec(hostile_text(), 0..4),
        label in hostile_text(),
        script in hostile_text(),
        token in hostile_text(),
        image in hostile_text(),
    ) {
        let spec = KThreesConfigSpec {
            files: Some(contents.iter().zip(&paths).map(|(_, path)| File {
                path: path.clone(),
                owner: Some(owner.clone()),
                permissions: Some(permissions.clone()),
                ..File::default()
            }).collect()),
            pre_k3s_commands: Some(commands.clone()),
            post_k3s_commands: Some(commands.clone()),
            agent_config: Some(AgentConfig {
                node_labels: Some(vec![label.clone()]),
                air_gapped: Some(true),
                air_gapped_install_script_path: Some(script.clone()),
                ..AgentConfig::default()
            }),
            server_config: Some(ServerConfig { etcd_proxy_image: Some(image.clone()), ..ServerConfig::default() }),
            ..KThreesConfigSpec::default()
        };
        let facts = Facts {
            endpoint_host: "10.0.0.1".into(),
            endpoint_port: 6443,
            token: token.clone(),
            version: "v1.34.1+k3s1".into(),
            file_contents: contents.clone(),
            ..Facts::default()
        };
        let userdata = render(&spec, &facts, Role::JoinServer).expect("it renders");
        let text = templated(&userdata);
        prop_assert!(text.starts_with("## template: jinja\n#cloud-config\n"));
        let config: CloudConfig = serde_saphyr::from_str(&text)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;

        prop_assert_eq!(config.runcmd.len(), commands.len() * 2 + 1);
        prop_assert_eq!(&config.runcmd[..commands.len()], &commands[..]);
        prop_assert_eq!(&config.runcmd[commands.len() + 1..], &commands[..]);
        prop_assert!(config.runcmd[commands.len()].contains("INSTALL_K3S_EXEC='server' sh "));

        prop_assert_eq!(config.write_files.len(), contents.len() + 3);
        for ((file, content), path) in config.write_files.iter().zip(&contents).zip(&paths) {
            prop_assert_eq!(&file.path, path);
            prop_assert_eq!(file.owner.clone().unwrap_or_default(), owner.clone());
            prop_assert_eq!(file.permissions.clone().unwrap_or_default(), permissions.clone());
            if file.encoding.as_deref() == Some("base64") {
                prop_assert_eq!(&STANDARD.decode(file.content.trim()).expect("base64"), content);
            } else {
                prop_assert_eq!(&file.encoding, &None);
                let written = std::str::from_utf8(content).expect("only text is written as it is");
                prop_assert_eq!(file.content.clone(), clipped(written));
            }
        }
        let k3s: serde_json::Value = serde_saphyr::from_str(&config.write_files.last().expect("config.yaml").content)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        if !token.is_empty() {
            prop_assert_eq!(k3s["token"].as_str(), Some(token.as_str()));
        }
        prop_assert_eq!(k3s["node-label"][0].as_str(), Some(label.as_str()));
        let proxy: serde_json::Value = serde_saphyr::from_str(&config.write_files[contents.len()].content)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        if !image.is_empty() {
            prop_assert_eq!(proxy["spec"]["template"]["spec"]["containers"][0]["image"].as_str(), Some(image.as_str()));
        }
    }
}
