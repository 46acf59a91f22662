//! Which kinds need nothing but their row and their schema?
//!
//! Storage, validation, defaults, columns, discovery and OpenAPI come from the row and from `schema/`. What acts on
//! these kinds runs elsewhere, or nowhere: each row says so, and whoever creates an object is told.

use super::{apps, core};
use crate::allocation::objects;
use crate::kind::ActedOn::{ByProgram, Nowhere};
use crate::kind::Scope::{Cluster, Namespaced};
use crate::kind::Subresource::{Approval, Scale, Status};
use crate::kind::{ActedOn, Kind, Scope, Subresource};
use crate::meta::NameRule;
use crate::strategy::declared::Declared;
use crate::strategy::{declared, endpoint_slice, job, network_policy};
use crate::table::{Column, Printer, declared as table, simple, workload};

const STATUS: &[Subresource] = &[Status];
const STATUS_SCALE: &[Subresource] = &[Status, Scale];
const CONTROLLERS: ActedOn = ByProgram("kube-controller-manager");
const SCHEDULER: ActedOn = ByProgram("kube-scheduler");
const NO_EXPRESSIONS: ActedOn = Nowhere("no write is refused or changed by it");

const fn storage(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain("storage.k8s.io", "v1", kind, plural, scope)
}

const fn resource(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain("resource.k8s.io", "v1", kind, plural, scope)
}

const fn networking(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain("networking.k8s.io", "v1", kind, plural, scope)
}

const fn admission(kind: &'static str, plural: &'static str) -> Kind {
    Kind {
        categories: &["api-extensions"],
        acted_on: NO_EXPRESSIONS,
        strategy: &declared::SPEC,
        ..Kind::plain("admissionregistration.k8s.io", "v1", kind, plural, Cluster)
    }
}

const fn certificates(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain("certificates.k8s.io", "v1", kind, plural, scope)
}

const fn columns(columns: &'static [Column]) -> Printer {
    table::printer(columns)
}

const fn text(name: &'static str, path: &'static str) -> Column {
    table::column(name, path, "string", 0)
}

const fn number(name: &'static str, path: &'static str) -> Column {
    table::column(name, path, "integer", 0)
}

const fn wide(name: &'static str, path: &'static str) -> Column {
    table::column(name, path, "string", 1)
}

const NAME: Column = table::NAME;
const AGE: Column = table::AGE;

pub static REPLICATION_CONTROLLER: Kind = Kind {
    short_names: &["rc"],
    categories: &["all"],
    subresources: STATUS_SCALE,
    acted_on: CONTROLLERS,
    selectable: &["status.replicas"],
    strategy: &Declared {
        template: &["spec", "template"],
        default: job::default_replication_controller,
        ..declared::SPEC_STATUS
    },
    printer: columns(&[
        NAME,
        number("Desired", ".spec.replicas"),
        number("Current", "{.status.replicas|0}"),
        number("Ready", "{.status.readyReplicas|0}"),
        AGE,
    ]),
    orphans: true,
    ..core("ReplicationController", "replicationcontrollers", Namespaced)
};

pub static PRIORITY_CLASS: Kind = Kind {
    short_names: &["pc"],
    strategy: &Declared {
        immutable: &["value"],
        ..declared::PLAIN
    },
    printer: columns(&[
        NAME,
        number("Value", "{.value|0}"),
        text("Global-Default", "{.globalDefault|false}"),
        AGE,
        text("PreemptionPolicy", ".preemptionPolicy"),
    ]),
    ..Kind::plain(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        Cluster,
    )
};

pub static CERTIFICATE_SIGNING_REQUEST: Kind = Kind {
    short_names: &["csr"],
    subresources: &[Status, Approval],
    acted_on: CONTROLLERS,
    selectable: &["spec.signerName"],
    strategy: &Declared {
        immutable: &["spec"],
        names: NameRule::PathSegment,
        ..declared::STATUS
    },
    printer: simple::CERTIFICATE_SIGNING_REQUEST,
    ..certificates("CertificateSigningRequest", "certificatesigningrequests", Cluster)
};

pub static CLUSTER_TRUST_BUNDLE: Kind = Kind {
    strategy: &Declared {
        immutable: &["spec.signerName"],
        names: NameRule::PathSegment,
        ..declared::PLAIN
    },
    selectable: &["spec.signerName"],
    printer: columns(&[NAME, text("SignerName", ".spec.signerName")]),
    ..certificates("ClusterTrustBundle", "clustertrustbundles", Cluster)
};

pub static POD_DISRUPTION_BUDGET: Kind = Kind {
    short_names: &["pdb"],
    subresources: STATUS,
    strategy: &declared::SPEC_STATUS,
    printer: columns(&[
        NAME,
        text("Min Available", "{.spec.minAvailable|N/A}"),
        text("Max Unavailable", "{.spec.maxUnavailable|N/A}"),
        number("Allowed Disruptions", "{.status.disruptionsAllowed|0}"),
        AGE,
    ]),
    ..Kind::plain(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        Namespaced,
    )
};

pub static SERVICE_CIDR: Kind = Kind {
    subresources: STATUS,
    strategy: &Declared {
        immutable: &["spec"],
        prepare: objects::prepare,
        validate: objects::validate,
        ..declared::STATUS
    },
    printer: columns(&[NAME, text("CIDRs", ".spec.cidrs[*]"), AGE]),
    ..networking("ServiceCIDR", "servicecidrs", Cluster)
};

pub static IP_ADDRESS: Kind = Kind {
    short_names: &["ip"],
    selectable: &["spec.parentRef"],
    strategy: &Declared {
        immutable: &["spec"],
        names: NameRule::PathSegment,
        validate: endpoint_slice::validate_ip_address,
        ..declared::PLAIN
    },
    printer: columns(&[
        NAME,
        text(
            "ParentRef",
            "{.spec.parentRef.resource}/{.spec.parentRef.namespace}/{.spec.parentRef.name}",
        ),
        AGE,
    ]),
    ..networking("IPAddress", "ipaddresses", Cluster)
};

static AUTOSCALER: Kind = Kind {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: STATUS,
    acted_on: CONTROLLERS,
    strategy: &declared::STATUS,
    printer: columns(&[
        NAME,
        text(
            "Reference",
            "{.spec.scaleTargetRef.kind}/{.spec.scaleTargetRef.name}",
        ),
        number("MinPods", "{.spec.minReplicas|1}"),
        number("MaxPods", ".spec.maxReplicas"),
        number("Replicas", "{.status.currentReplicas|0}"),
        AGE,
    ]),
    ..Kind::plain(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        Namespaced,
    )
};

/// The rows that no code refers to by name come after those that some does.
pub static ALL: &[&Kind] = &[
    &Kind {
        short_names: &["limits"],
        acted_on: Nowhere("it neither limits nor fills in what pods ask for"),
        strategy: &declared::PLAIN,
        ..core("LimitRange", "limitranges", Namespaced)
    },
    &Kind {
        short_names: &["pvc"],
        subresources: STATUS,
        acted_on: CONTROLLERS,
        strategy: &Declared {
            phase: "Pending",
            ..declared::STATUS
        },
        printer: columns(&[
            NAME,
            text("Status", ".status.phase"),
            text("Volume", ".spec.volumeName"),
            text("Capacity", ".status.capacity.storage"),
            text("Access Modes", ".status.accessModes[*]"),
            text("StorageClass", ".spec.storageClassName"),
            text(
                "VolumeAttributesClass",
                "{.spec.volumeAttributesClassName|<unset>}",
            ),
            AGE,
            wide("VolumeMode", ".spec.volumeMode"),
        ]),
        ..core("PersistentVolumeClaim", "persistentvolumeclaims", Namespaced)
    },
    &Kind {
        short_names: &["pv"],
        subresources: STATUS,
        acted_on: CONTROLLERS,
        strategy: &Declared {
            phase: "Pending",
            ..declared::STATUS
        },
        printer: columns(&[
            NAME,
            text("Capacity", ".spec.capacity.storage"),
            text("Access Modes", ".spec.accessModes[*]"),
            text("Reclaim Policy", ".spec.persistentVolumeReclaimPolicy"),
            text("Status", ".status.phase"),
            text("Claim", "{.spec.claimRef.namespace}/{.spec.claimRef.name}"),
            text("StorageClass", ".spec.storageClassName"),
            text(
                "VolumeAttributesClass",
                "{.spec.volumeAttributesClassName|<unset>}",
            ),
            text("Reason", ".status.reason"),
            AGE,
            wide("VolumeMode", ".spec.volumeMode"),
        ]),
        ..core("PersistentVolume", "persistentvolumes", Cluster)
    },
    &Kind {
        strategy: &Declared {
            template: &["template"],
            ..declared::PLAIN
        },
        printer: columns(&[
            NAME,
            text("Containers", ".template.spec.containers[*].name"),
            text("Images", ".template.spec.containers[*].image"),
        ]),
        ..core("PodTemplate", "podtemplates", Namespaced)
    },
    &REPLICATION_CONTROLLER,
    &Kind {
        short_names: &["quota"],
        subresources: STATUS,
        acted_on: Nowhere("nothing limits what the namespace uses"),
        strategy: &declared::STATUS,
        ..core("ResourceQuota", "resourcequotas", Namespaced)
    },
    &Kind {
        strategy: &Declared {
            immutable: &["data"],
            ..declared::PLAIN
        },
        printer: columns(&[
            NAME,
            text(
                "Controller",
                "{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}",
            ),
            number("Revision", ".revision"),
            AGE,
        ]),
        ..apps("ControllerRevision", "controllerrevisions")
    },
    &Kind {
        short_names: &["sts"],
        categories: &["all"],
        subresources: STATUS_SCALE,
        strategy: &Declared {
            template: &["spec", "template"],
            immutable: &["spec.selector", "spec.serviceName", "spec.podManagementPolicy"],
            ..declared::SPEC_STATUS
        },
        printer: columns(&[
            NAME,
            text("Ready", "{.status.readyReplicas|0}/{.spec.replicas|0}"),
            AGE,
            wide("Containers", ".spec.template.spec.containers[*].name"),
            wide("Images", ".spec.template.spec.containers[*].image"),
        ]),
        ..apps("StatefulSet", "statefulsets")
    },
    &Kind {
        short_names: &["cj"],
        categories: &["all"],
        subresources: STATUS,
        acted_on: CONTROLLERS,
        strategy: &Declared {
            template: &["spec", "jobTemplate", "spec", "template"],
            ..declared::SPEC_STATUS
        },
        printer: columns(&[
            NAME,
            text("Schedule", ".spec.schedule"),
            text("Timezone", "{.spec.timeZone|<none>}"),
            text("Suspend", "{.spec.suspend|false}"),
            text("Last Schedule", ".status.lastScheduleTime"),
            AGE,
        ]),
        ..Kind::plain("batch", "v1", "CronJob", "cronjobs", Namespaced)
    },
    &Kind {
        categories: &["all"],
        subresources: STATUS,
        strategy: &Declared {
            template: &["spec", "template"],
            immutable: &["spec.selector", "spec.completionMode"],
            default: job::default_job,
            prepare: job::generate_selector,
            validate: job::validate_job,
            ..declared::SPEC_STATUS
        },
        printer: workload::JOB,
        orphans: true,
        ..Kind::plain("batch", "v1", "Job", "jobs", Namespaced)
    },
    &AUTOSCALER,
    &POD_DISRUPTION_BUDGET,
    &PRIORITY_CLASS,
    &Kind {
        acted_on: ByProgram("the kubelet"),
        strategy: &Declared {
            immutable: &["handler"],
            ..declared::PLAIN
        },
        printer: columns(&[NAME, text("Handler", ".handler"), AGE]),
        ..Kind::plain("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", Cluster)
    },
    &Kind {
        strategy: &declared::PLAIN,
        printer: columns(&[
            NAME,
            text("AttachRequired", ".spec.attachRequired"),
            text("PodInfoOnMount", ".spec.podInfoOnMount"),
            text("StorageCapacity", ".spec.storageCapacity"),
            AGE,
        ]),
        ..storage("CSIDriver", "csidrivers", Cluster)
    },
    &Kind {
        subresources: STATUS,
        strategy: &declared::STATUS,
        printer: columns(&[NAME, text("Drivers", ".spec.drivers[*].name"), AGE]),
        ..storage("CSINode", "csinodes", Cluster)
    },
    &Kind {
        strategy: &declared::PLAIN,
        printer: columns(&[
            NAME,
            text("StorageClass", ".storageClassName"),
            text("Capacity", ".capacity"),
            AGE,
        ]),
        ..storage("CSIStorageCapacity", "csistoragecapacities", Namespaced)
    },
    &Kind {
        short_names: &["sc"],
        acted_on: CONTROLLERS,
        strategy: &Declared {
            immutable: &["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"],
            ..declared::PLAIN
        },
        printer: columns(&[
            NAME,
            text("Provisioner", ".provisioner"),
            text("ReclaimPolicy", ".reclaimPolicy"),
            text("VolumeBindingMode", ".volumeBindingMode"),
            text("AllowVolumeExpansion", "{.allowVolumeExpansion|false}"),
            AGE,
        ]),
        ..storage("StorageClass", "storageclasses", Cluster)
    },
    &Kind {
        subresources: STATUS,
        strategy: &Declared {
            immutable: &["spec"],
            ..declared::STATUS
        },
        printer: columns(&[
            NAME,
            text("Attacher", ".spec.attacher"),
            text("PV", ".spec.source.persistentVolumeName"),
            text("Node", ".spec.nodeName"),
            text("Attached", "{.status.attached|false}"),
            AGE,
        ]),
        ..storage("VolumeAttachment", "volumeattachments", Cluster)
    },
    &Kind {
        short_names: &["vac"],
        strategy: &Declared {
            immutable: &["driverName", "parameters"],
            ..declared::PLAIN
        },
        printer: columns(&[NAME, text("DriverName", ".driverName"), AGE]),
        ..storage("VolumeAttributesClass", "volumeattributesclasses", Cluster)
    },
    &Kind {
        acted_on: SCHEDULER,
        strategy: &declared::SPEC,
        ..resource("DeviceClass", "deviceclasses", Cluster)
    },
    &Kind {
        subresources: STATUS,
        acted_on: CONTROLLERS,
        strategy: &declared::SPEC_STATUS,
        ..resource("DeviceTaintRule", "devicetaintrules", Cluster)
    },
    &Kind {
        subresources: STATUS,
        acted_on: SCHEDULER,
        strategy: &Declared {
            immutable: &["spec"],
            ..declared::STATUS
        },
        printer: columns(&[NAME, text("State", ".status.reservedFor[*].name"), AGE]),
        ..resource("ResourceClaim", "resourceclaims", Namespaced)
    },
    &Kind {
        acted_on: CONTROLLERS,
        strategy: &Declared {
            immutable: &["spec"],
            ..declared::PLAIN
        },
        ..resource("ResourceClaimTemplate", "resourceclaimtemplates", Namespaced)
    },
    &Kind {
        selectable: &["spec.driver", "spec.nodeName"],
        strategy: &declared::SPEC,
        printer: columns(&[
            NAME,
            text("Node", ".spec.nodeName"),
            text("Driver", ".spec.driver"),
            text("Pool", ".spec.pool.name"),
            AGE,
        ]),
        ..resource("ResourceSlice", "resourceslices", Cluster)
    },
    &Kind {
        acted_on: ByProgram("an ingress controller"),
        printer: columns(&[
            NAME,
            text("Controller", ".spec.controller"),
            text("Parameters", "{.spec.parameters.kind}/{.spec.parameters.name}"),
            AGE,
        ]),
        strategy: &Declared {
            immutable: &["spec.controller"],
            ..declared::SPEC
        },
        ..networking("IngressClass", "ingressclasses", Cluster)
    },
    &Kind {
        short_names: &["ing"],
        subresources: STATUS,
        acted_on: ByProgram("an ingress controller"),
        strategy: &declared::SPEC_STATUS,
        printer: columns(&[
            NAME,
            text("Class", "{.spec.ingressClassName|<none>}"),
            text("Hosts", ".spec.rules[*].host"),
            text("Address", ".status.loadBalancer.ingress[*].ip"),
            AGE,
        ]),
        ..networking("Ingress", "ingresses", Namespaced)
    },
    &IP_ADDRESS,
    &Kind {
        short_names: &["netpol"],
        acted_on: ByProgram("a network plugin that enforces it"),
        strategy: &Declared {
            default: network_policy::fill_in,
            validate: network_policy::validate,
            ..declared::SPEC
        },
        ..networking("NetworkPolicy", "networkpolicies", Namespaced)
    },
    &SERVICE_CIDR,
    &CERTIFICATE_SIGNING_REQUEST,
    &CLUSTER_TRUST_BUNDLE,
    &Kind {
        subresources: STATUS,
        acted_on: ByProgram("a signer"),
        selectable: &["spec.signerName", "spec.podName", "spec.nodeName"],
        strategy: &Declared {
            immutable: &["spec"],
            ..declared::STATUS
        },
        printer: columns(&[
            NAME,
            text("PodName", ".spec.podName"),
            text("SignerName", ".spec.signerName"),
            AGE,
        ]),
        ..certificates("PodCertificateRequest", "podcertificaterequests", Namespaced)
    },
    &Kind {
        subresources: STATUS,
        acted_on: CONTROLLERS,
        strategy: &declared::SPEC_STATUS,
        ..Kind::plain(
            "storagemigration.k8s.io",
            "v1",
            "StorageVersionMigration",
            "storageversionmigrations",
            Cluster,
        )
    },
    &Kind {
        subresources: STATUS,
        strategy: &declared::SPEC_STATUS,
        ..admission("ValidatingAdmissionPolicy", "validatingadmissionpolicies")
    },
    &admission(
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    ),
    &admission("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
    &admission(
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    ),
    // Reads are served because clients look whether a webhook is in their way; writes are refused, since nobody
    // would be asked.
    &Kind {
        verbs: READ_ONLY,
        ..admission(
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
        )
    },
    &Kind {
        verbs: READ_ONLY,
        ..admission("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
    },
];

const READ_ONLY: &[&str] = &["get", "list", "watch"];
