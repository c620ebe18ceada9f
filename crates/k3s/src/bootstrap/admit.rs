//! Defaulting and validation of KThreesConfig and its template. Validation looks at what changed: an object that was
//! accepted once stays editable.

use std::{collections::BTreeSet, net::IpAddr};

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    api::{
        AgentConfig, Datastore, File, KThreesConfig, KThreesConfigSpec, KThreesConfigTemplate, ServerConfig,
    },
    version::Version,
};

/// What an absent field means, written down: servers leave the cloud to an external controller.
pub fn default_config_spec(spec: &mut KThreesConfigSpec) {
    let server = spec.server_config.get_or_insert_default();
    server.disable_cloud_controller.get_or_insert(true);
    server
        .cloud_provider_name
        .get_or_insert_with(|| "external".into());
}

pub fn default_config(config: &mut KThreesConfig, _old: Option<&KThreesConfig>) {
    default_config_spec(&mut config.spec);
}

pub fn validate_config(change: &Change<KThreesConfig>) -> Verdict {
    let path = Path::new("spec");
    verdict(
        change.new.as_ref().map(|config| &config.spec),
        change.old.as_ref().map(|config| &config.spec),
        &path,
    )
}

pub fn validate_config_template(change: &Change<KThreesConfigTemplate>) -> Verdict {
    let path = Path::new("spec").child("template").child("spec");
    let spec = |template: &Option<KThreesConfigTemplate>| {
        template
            .as_ref()
            .map(|template| template.spec.template.spec.clone().unwrap_or_default())
    };
    verdict(spec(&change.new).as_ref(), spec(&change.old).as_ref(), &path)
}

fn verdict(new: Option<&KThreesConfigSpec>, old: Option<&KThreesConfigSpec>, path: &Path) -> Verdict {
    let Some(new) = new else {
        return Verdict::allowed();
    };
    let mut warnings = Vec::new();
    let errors = config_spec_errors(new, path, &mut warnings);
    let errors = match old {
        Some(old) => only_new(errors, &config_spec_errors(old, path, &mut Vec::new())),
        None => errors,
    };
    Verdict::from_errors(errors, warnings)
}

/// The errors that were not there before.
pub fn only_new(errors: Vec<FieldError>, before: &[FieldError]) -> Vec<FieldError> {
    errors
        .into_iter()
        .filter(|error| !before.contains(error))
        .collect()
}

/// Everything wrong with one KThreesConfigSpec.
pub fn config_spec_errors(
    spec: &KThreesConfigSpec,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, file) in spec.files.iter().flatten().enumerate() {
        let path = path.child("files").index(index);
        file_errors(file, &path, &mut errors);
        if !seen.insert(file.path.as_str()) {
            warnings.push(format!(
                "{path}: {:?} is written more than once, the last one stays",
                file.path
            ));
        }
        if file.path == super::k3s_config::PATH {
            warnings.push(format!(
                "{path}: {} is written by the provider afterwards; use /etc/rancher/k3s/config.yaml.d/ instead",
                file.path
            ));
        }
    }
    for (name, commands) in [
        ("preK3sCommands", &spec.pre_k3s_commands),
        ("postK3sCommands", &spec.post_k3s_commands),
    ] {
        for (index, command) in commands.iter().flatten().enumerate() {
            if command.contains('\0') {
                errors.push(FieldError::invalid(
                    &path.child(name).index(index),
                    command.as_str(),
                    "must not hold a NUL character: no shell can run it",
                ));
            }
        }
    }
    if let Some(version) = spec.version.as_deref().filter(|version| !version.is_empty())
        && let Err(error) = version.parse::<Version>()
    {
        errors.push(FieldError::invalid(
            &path.child("version"),
            version,
            error.to_string(),
        ));
    }
    if let Some(server) = &spec.server_config {
        server_errors(server, &path.child("serverConfig"), &mut errors, warnings);
    }
    if let Some(agent) = &spec.agent_config {
        agent_errors(agent, &path.child("agentConfig"), &mut errors);
    }
    errors
}

fn file_errors(file: &File, path: &Path, errors: &mut Vec<FieldError>) {
    absolute(&file.path, &path.child("path"), errors);
    if let Some(permissions) = file.permissions.as_deref().filter(|value| !value.is_empty())
        && !((3..=4).contains(&permissions.len())
            && permissions.chars().all(|digit| ('0'..='7').contains(&digit)))
    {
        errors.push(FieldError::invalid(
            &path.child("permissions"),
            permissions,
            "must be three or four octal digits, e.g. 0640",
        ));
    }
    if let Some(owner) = file.owner.as_deref()
        && owner
            .chars()
            .any(|character| character.is_control() || character.is_whitespace())
    {
        errors.push(FieldError::invalid(
            &path.child("owner"),
            owner,
            "must be user or user:group, e.g. root:root",
        ));
    }
    if let Some(source) = &file.content_from {
        if file.content.as_deref().is_some_and(|content| !content.is_empty()) {
            errors.push(FieldError::invalid(
                &path.child("content"),
                "…",
                "must not be set together with contentFrom",
            ));
        }
        secret_errors(&source.secret, &path.child("contentFrom").child("secret"), errors);
    }
}

fn secret_errors(secret: &crate::api::SecretKey, path: &Path, errors: &mut Vec<FieldError>) {
    if secret.name.is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "names the secret to read",
        ));
    }
    if secret.key.is_empty() {
        errors.push(FieldError::required(
            &path.child("key"),
            "names the key in the secret's data",
        ));
    }
}

fn absolute(text: &str, path: &Path, errors: &mut Vec<FieldError>) {
    if text.is_empty() {
        errors.push(FieldError::required(path, "the full path on the host"));
    } else if !text.starts_with('/') || text.chars().any(char::is_control) {
        errors.push(FieldError::invalid(
            path,
            text,
            "must be a full path that starts with / and holds no control characters",
        ));
    }
}

/// Fields may be expressions cloud-init fills in on the host; those are checked there.
fn given(value: Option<&String>) -> Option<&str> {
    value
        .map(String::as_str)
        .filter(|value| !value.is_empty() && !value.contains("{{"))
}

fn server_errors(
    server: &ServerConfig,
    path: &Path,
    errors: &mut Vec<FieldError>,
    warnings: &mut Vec<String>,
) {
    for (name, value) in [
        ("httpsListenPort", &server.https_listen_port),
        ("advertisePort", &server.advertise_port),
    ] {
        if let Some(port) = given(value.as_ref())
            && port.parse::<u16>().is_err()
        {
            errors.push(FieldError::invalid(
                &path.child(name),
                port,
                "must be a port, 1 to 65535",
            ));
        }
    }
    for (name, value) in [
        ("bindAddress", &server.bind_address),
        ("advertiseAddress", &server.advertise_address),
    ] {
        if let Some(address) = given(value.as_ref())
            && address.parse::<IpAddr>().is_err()
        {
            errors.push(FieldError::invalid(
                &path.child(name),
                address,
                "must be an IP address",
            ));
        }
    }
    for (name, value) in [
        ("clusterCidr", &server.cluster_cidr),
        ("serviceCidr", &server.service_cidr),
    ] {
        if let Some(ranges) = given(value.as_ref())
            && !ranges.split(',').all(|range| parse_range(range).is_some())
        {
            errors.push(FieldError::invalid(
                &path.child(name),
                ranges,
                "must be a range such as 10.42.0.0/16, or one per address family separated by a comma",
            ));
        }
    }
    dns_errors(server, &path.child("clusterDNS"), errors);
    if let Some(domain) = given(server.cluster_domain.as_ref())
        && !is_domain(domain)
    {
        errors.push(FieldError::invalid(
            &path.child("clusterDomain"),
            domain,
            "must be a DNS name such as cluster.local",
        ));
    }
    if server.disable_external_cloud_provider == Some(true) {
        warnings.push(format!(
            "{}: deprecated and without effect; set cloudProviderName to \"\" and disableCloudController to false",
            path.child("disableExternalCloudProvider")
        ));
    }
    if let Some(datastore) = &server.datastore {
        datastore_errors(datastore, &path.child("datastore"), errors);
    }
}

/// Addresses of the cluster's DNS lie in the service range.
fn dns_errors(server: &ServerConfig, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(addresses) = given(server.cluster_dns.as_ref()) else {
        return;
    };
    let ranges: Vec<_> = given(server.service_cidr.as_ref())
        .unwrap_or("10.43.0.0/16")
        .split(',')
        .filter_map(parse_range)
        .collect();
    for address in addresses.split(',') {
        match address.trim().parse::<IpAddr>() {
            Err(_) => errors.push(FieldError::invalid(path, addresses, "must be an IP address")),
            Ok(parsed) if !ranges.iter().any(|range| contains(*range, parsed)) => {
                errors.push(FieldError::invalid(
                    path,
                    addresses,
                    "must lie in the service range (serviceCidr, default 10.43.0.0/16)",
                ));
            }
            Ok(_) => {}
        }
    }
}

fn datastore_errors(datastore: &Datastore, path: &Path, errors: &mut Vec<FieldError>) {
    secret_errors(
        &datastore.endpoint_from.secret,
        &path.child("endpointFrom").child("secret"),
        errors,
    );
    for (name, file) in [
        ("caFile", &datastore.ca_file),
        ("certFile", &datastore.cert_file),
        ("keyFile", &datastore.key_file),
    ] {
        if let Some(file) = file {
            absolute(file, &path.child(name), errors);
        }
    }
    if datastore.cert_file.is_some() != datastore.key_file.is_some() {
        errors.push(FieldError::invalid(
            &path.child("certFile"),
            datastore.cert_file.clone().unwrap_or_default(),
            "certFile and keyFile must be set together",
        ));
    }
}

fn agent_errors(agent: &AgentConfig, path: &Path, errors: &mut Vec<FieldError>) {
    for (index, label) in agent.node_labels.iter().flatten().enumerate() {
        if given(Some(label)).is_some() && !label.contains('=') {
            errors.push(FieldError::invalid(
                &path.child("nodeLabels").index(index),
                label.as_str(),
                "must be key=value",
            ));
        }
    }
    for (index, taint) in agent.node_taints.iter().flatten().enumerate() {
        let effect = taint.rsplit_once(':').map(|(_, effect)| effect);
        if given(Some(taint)).is_some()
            && !matches!(effect, Some("NoSchedule" | "PreferNoSchedule" | "NoExecute"))
        {
            errors.push(FieldError::invalid(
                &path.child("nodeTaints").index(index),
                taint.as_str(),
                "must be key=value:Effect with the effect NoSchedule, PreferNoSchedule or NoExecute",
            ));
        }
    }
    if let Some(script) = agent
        .air_gapped_install_script_path
        .as_deref()
        .filter(|path| !path.is_empty())
    {
        absolute(script, &path.child("airGappedInstallScriptPath"), errors);
    }
    if agent.provider_id.as_deref().is_some_and(|id| !id.is_empty())
        && agent
            .kubelet_args
            .iter()
            .flatten()
            .any(|argument| argument.trim_start_matches('-').starts_with("provider-id="))
    {
        errors.push(FieldError::forbidden(
            &path.child("providerID"),
            "kubeletArgs already holds provider-id; set one of the two",
        ));
    }
}

type Range = (IpAddr, u8);

fn parse_range(text: &str) -> Option<Range> {
    let (address, length) = text.trim().split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    (length <= longest).then_some((address, length))
}

fn contains((network, length): Range, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    if network.is_ipv4() != address.is_ipv4() {
        return false;
    }
    length == 0 || (bits(network) ^ bits(address)) >> (128 - u32::from(length)) == 0
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label.chars().all(|character| {
                    character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
                })
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}
