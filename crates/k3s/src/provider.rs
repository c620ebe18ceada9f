//! The registration: two clusterctl packages, `bootstrap-k3s` and `control-plane-k3s`.

use std::sync::Arc;

use slipway_capi::names::condition as names;
use slipway_runtime::{
    Package, PackageKind, Provider, Rule,
    admission::{Admission, Handler, Operation, Phase, Request, Verdict, field::Path},
    conversion::Conversion,
    provider::{ConditionType, ForeignFlag},
};

use crate::{
    api::{
        CONTROL_PLANE_GROUP, KThreesConfig, KThreesConfigTemplate, KThreesControlPlane,
        KThreesControlPlaneTemplate, VERSION, conditions, crd,
    },
    bootstrap, control_plane, conversion, example, insight,
};

/// What cluster-api-k3s v0.2.1's managers take beside the flags that all Cluster API managers share.
const UPSTREAM_FLAGS: &[ForeignFlag] = &[
    ForeignFlag::value("etcd-call-timeout-duration"),
    ForeignFlag::value("etcd-dial-timeout-duration"),
    ForeignFlag::value("metrics-addr").instead("diagnostics-address"),
];

const WRITES: &[Operation] = &[Operation::Create, Operation::Update];

/// Everything K3s brings.
pub fn provider() -> Provider {
    let mut provider = Provider::new("k3s");
    provider.insight = insight::insight();
    provider.packages = vec![bootstrap_package(), control_plane_package()];
    provider.examples = vec![example::example()];
    provider.foreign_flags = UPSTREAM_FLAGS;
    provider
}

fn bootstrap_package() -> Package {
    let mut package = Package::new(PackageKind::Bootstrap, "k3s");
    package.name_prefix = Some("capi-k3s-bootstrap");
    package.crds = crd::bootstrap();
    package.admission = vec![
        Admission::defaulting::<KThreesConfig>(bootstrap::admit::default_config),
        Admission::validating::<KThreesConfig>(WRITES, bootstrap::admit::validate_config),
        Admission::validating::<KThreesConfigTemplate>(WRITES, bootstrap::admit::validate_config_template),
    ];
    package.conversion = vec![
        Conversion::new("kthreesconfigs.bootstrap.cluster.x-k8s.io", conversion::convert),
        Conversion::new(
            "kthreesconfigtemplates.bootstrap.cluster.x-k8s.io",
            conversion::convert,
        ),
    ];
    package.rbac = vec![
        Rule::new(
            "bootstrap.cluster.x-k8s.io",
            &[
                "kthreesconfigs",
                "kthreesconfigs/status",
                "kthreesconfigs/finalizers",
            ],
            Rule::ALL,
        ),
        Rule::new(
            "bootstrap.cluster.x-k8s.io",
            &["kthreesconfigtemplates"],
            Rule::READ,
        ),
        Rule::new(
            "cluster.x-k8s.io",
            &["clusters", "machines", "machinepools"],
            Rule::READ,
        ),
        Rule::new("", &["secrets", "configmaps"], Rule::ALL),
        Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    package.controllers = vec![bootstrap::registration()];
    package.conditions = describe(
        "KThreesConfig",
        &[
            (
                conditions::READY,
                "its Machine can be started with the data there is",
            ),
            (
                conditions::DATA_SECRET_AVAILABLE,
                "the Secret with the userdata is written",
            ),
            (
                conditions::CERTIFICATES_AVAILABLE,
                "the cluster's certificate authorities are there",
            ),
            PAUSED,
        ],
    );
    package
}

const PAUSED: (&str, &str) = (
    conditions::PAUSED,
    "it or its Cluster is paused, and nothing is done for it",
);

fn describe(kind: &'static str, found: &[(&'static str, &'static str)]) -> Vec<ConditionType> {
    found
        .iter()
        .map(|&(name, meaning)| ConditionType { kind, name, meaning })
        .collect()
}

fn control_plane_package() -> Package {
    let mut package = Package::new(PackageKind::ControlPlane, "k3s");
    package.name_prefix = Some("capi-k3s-control-plane");
    package.crds = crd::control_plane();
    package.admission = vec![
        Admission::defaulting::<KThreesControlPlane>(control_plane::admit::default_control_plane),
        Admission::validating::<KThreesControlPlane>(WRITES, control_plane::admit::validate_control_plane),
        Admission::validating::<KThreesControlPlaneTemplate>(
            WRITES,
            control_plane::admit::validate_control_plane_template,
        ),
        scale(),
    ];
    package.conversion = vec![Conversion::new(
        "kthreescontrolplanes.controlplane.cluster.x-k8s.io",
        conversion::convert,
    )];
    package.rbac = vec![
        Rule::new(
            "controlplane.cluster.x-k8s.io",
            &[
                "kthreescontrolplanes",
                "kthreescontrolplanes/status",
                "kthreescontrolplanes/finalizers",
                "kthreescontrolplanes/scale",
            ],
            Rule::ALL,
        ),
        Rule::new("bootstrap.cluster.x-k8s.io", &["kthreesconfigs"], Rule::ALL),
        Rule::new("infrastructure.cluster.x-k8s.io", &["*"], Rule::ALL),
        Rule::new("cluster.x-k8s.io", &["machines", "machines/status"], Rule::ALL),
        Rule::new("cluster.x-k8s.io", &["clusters", "machinepools"], Rule::READ),
        Rule::new("runtime.cluster.x-k8s.io", &["extensionconfigs"], Rule::READ),
        Rule::new("apiextensions.k8s.io", &["customresourcedefinitions"], Rule::READ),
        Rule::new("", &["namespaces"], Rule::READ),
        Rule::new("", &["secrets"], Rule::ALL),
        Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    package.controllers = vec![control_plane::registration()];
    package.conditions = control_plane_conditions();
    package
}

fn control_plane_conditions() -> Vec<ConditionType> {
    let mut all = describe(
        "KThreesControlPlane",
        &[
            (conditions::READY, "everything below that is known is True"),
            (conditions::AVAILABLE, "the API server answers"),
            (
                conditions::CERTIFICATES_AVAILABLE,
                "the cluster's certificate authorities are there",
            ),
            (
                conditions::TOKEN_AVAILABLE,
                "the token that servers join with is there",
            ),
            (conditions::MACHINES_READY, "every Machine is ready"),
            (
                conditions::MACHINES_SPEC_UP_TO_DATE,
                "no Machine waits to be replaced or updated",
            ),
            (conditions::RESIZED, "there are as many Machines as asked for"),
            (
                names::ROLLING_OUT,
                "Machines are out of date and are replaced or updated one after the other",
            ),
            (names::MACHINES_UP_TO_DATE, "no Machine is out of date"),
            (names::SCALING_UP, "there are fewer Machines than asked for"),
            (names::SCALING_DOWN, "there are more Machines than asked for"),
            (
                names::REMEDIATING,
                "a health check failed, and a Machine is to be replaced",
            ),
            (
                names::DELETING,
                "it is being deleted; the message says what is waited for",
            ),
            (
                conditions::MACHINES_OWNED,
                "every control-plane Machine of the Cluster is its own",
            ),
            PAUSED,
            (
                conditions::COMPONENTS_HEALTHY,
                "the control plane's components run on every Machine",
            ),
            (
                conditions::ETCD_CLUSTER_HEALTHY,
                "every Machine has a voting member of etcd, and there are no others",
            ),
        ],
    );
    all.extend(describe(
        "Machine",
        &[
            (conditions::AGENT_HEALTHY, "k3s runs on the node"),
            (
                conditions::ETCD_MEMBER_HEALTHY,
                "its member of etcd votes and answers",
            ),
            (names::UP_TO_DATE, "it is as the control plane asks for"),
            (
                names::OWNER_REMEDIATED,
                "never: False says why it is not replaced, and it is absent otherwise",
            ),
        ],
    ));
    all
}

/// `kubectl scale` goes past the object's own validation: the count is checked here too.
fn scale() -> Admission {
    let handler: Handler = Arc::new(|request: Request, client: kube::Client| {
        Box::pin(async move {
            let Some(replicas) = request
                .object
                .as_ref()
                .and_then(|scale| scale.pointer("/spec/replicas"))
                .and_then(serde_json::Value::as_i64)
            else {
                return Verdict::allowed();
            };
            let api: kube::Api<KThreesControlPlane> = kube::Api::namespaced(client, &request.namespace);
            let embedded_etcd = match api.get_opt(&request.name).await {
                Ok(Some(object)) => object.spec.config().has_embedded_etcd(),
                Ok(None) => return Verdict::allowed(),
                Err(error) => {
                    return Verdict::Forbidden {
                        message: format!("cannot read KThreesControlPlane {}: {error}", request.name),
                    };
                }
            };
            let path = Path::new("spec").child("replicas");
            let replicas = i32::try_from(replicas).unwrap_or(-1);
            let errors = control_plane::admit::replicas_error(replicas, embedded_etcd, &path);
            Verdict::from_errors(errors.into_iter().collect(), Vec::new())
        })
    });
    Admission {
        phase: Phase::Validating,
        group: CONTROL_PLANE_GROUP.into(),
        version: VERSION.into(),
        kind: "KThreesControlPlaneScale".into(),
        plural: "kthreescontrolplanes/scale".into(),
        operations: vec![Operation::Update],
        handler,
    }
}
