//! What are the labels, annotations, taints and objects called?

/// Labels and annotations of Services and EndpointSlices.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Names the controller of a slice.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY_LABEL`]: the upstream controller's, whose place we take.
pub const SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// The value for slices that mirror Endpoints (upstream's).
pub const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
/// On the slices of headless Services.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// A Service with this label belongs to another proxy.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// The time of the change that a write of endpoints reports.
pub const TRIGGER_TIME_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Asks for hints by zone; the older name, which wins.
pub const TOPOLOGY_HINTS_ANNOTATION: &str = "service.kubernetes.io/topology-aware-hints";
/// Asks for hints by zone.
pub const TOPOLOGY_MODE_ANNOTATION: &str = "service.kubernetes.io/topology-mode";

/// On pods: the microsecond time of the last readiness change, set by Pointsman's node agent in the
/// same write as the Ready condition (whose own time has whole seconds). On Services: when Pointsman's API
/// server wrote this version; in the event of a removal, when it removed the Service.
pub const CHANGE_TIME_ANNOTATION: &str = "pointsman.io/last-change-time";
/// On pods: how much the owner would miss this pod, compared to its siblings.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// On pods: `off` lets the pod be stopped without a question at the shutdown gate.
pub const GATE_ANNOTATION: &str = "pointsman.io/shutdown-gate";

pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
pub const REGION_LABEL: &str = "topology.kubernetes.io/region";
/// The older name of [`ZONE_LABEL`], which wins.
pub const OLD_ZONE_LABEL: &str = "failure-domain.beta.kubernetes.io/zone";
/// The older name of [`REGION_LABEL`], which wins.
pub const OLD_REGION_LABEL: &str = "failure-domain.beta.kubernetes.io/region";
/// A node with this label does not count for the state of its zone.
pub const EXCLUDE_DISRUPTION_LABEL: &str = "node.kubernetes.io/exclude-disruption";
/// On nodes of the control plane.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// The older name of [`CONTROL_PLANE_LABEL`].
pub const MASTER_LABEL: &str = "node-role.kubernetes.io/master";
/// The pool of a node, which may have a latency profile of its own.
pub const POOL_LABEL: &str = "pointsman.io/pool";
/// `none` on a node that forwards nothing for Services, such as a virtual one: nobody expects its watermark.
pub const PROGRAMMER_LABEL: &str = "pointsman.io/programmer";
/// On nodes: the report period that the agent really uses.
pub const REPORT_PERIOD_ANNOTATION: &str = "pointsman.io/node-status-update-frequency";

/// Taint of a node that says it is not ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// Taint of a node that says nothing.
pub const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// The taint by which the cluster autoscaler announces a node's removal.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
