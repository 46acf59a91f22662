//! Which messages does the container runtime interface exchange?
//!
//! Only the fields used here; field numbers are those of version 1 of `runtime/api.proto`. Written by hand, so that
//! building needs no `protoc`.

use prost::Message;
use std::collections::BTreeMap;

/// Values of the interface's enumerations.
pub mod value {
    pub const PROTOCOL_TCP: i32 = 0;
    pub const PROTOCOL_UDP: i32 = 1;
    pub const PROTOCOL_SCTP: i32 = 2;
    pub const NAMESPACE_POD: i32 = 0;
    pub const NAMESPACE_CONTAINER: i32 = 1;
    pub const NAMESPACE_NODE: i32 = 2;
    pub const PROFILE_DEFAULT: i32 = 0;
    pub const PROFILE_UNCONFINED: i32 = 1;
    pub const SANDBOX_READY: i32 = 0;
    pub const CONTAINER_CREATED: i32 = 0;
    pub const CONTAINER_RUNNING: i32 = 1;
    pub const CONTAINER_EXITED: i32 = 2;
}

/// Declares messages: `Name { field: kind [label] = number }`.
macro_rules! messages {
    ($($name:ident { $($(#[prost($($attribute:tt)*)])* $field:ident: $type:ty,)* })*) => {
        $(
            #[derive(Clone, PartialEq, Message)]
            pub struct $name {
                $($(#[prost($($attribute)*)])* pub $field: $type,)*
            }
        )*
    };
}

messages! {
    VersionRequest {}
    VersionResponse {
        #[prost(string, tag = "2")]
        runtime_name: String,
        #[prost(string, tag = "3")]
        runtime_version: String,
    }
    StatusRequest {}
    StatusResponse {
        #[prost(message, optional, tag = "1")]
        status: Option<RuntimeStatus>,
    }
    RuntimeStatus {
        #[prost(message, repeated, tag = "1")]
        conditions: Vec<RuntimeCondition>,
    }
    RuntimeCondition {
        #[prost(string, tag = "1")]
        kind: String,
        #[prost(bool, tag = "2")]
        status: bool,
        #[prost(string, tag = "3")]
        reason: String,
        #[prost(string, tag = "4")]
        message: String,
    }
    UpdateRuntimeConfigRequest {
        #[prost(message, optional, tag = "1")]
        runtime_config: Option<RuntimeConfig>,
    }
    RuntimeConfig {
        #[prost(message, optional, tag = "1")]
        network_config: Option<NetworkConfig>,
    }
    NetworkConfig {
        #[prost(string, tag = "1")]
        pod_cidr: String,
    }
    Empty {}

    PodSandboxMetadata {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        uid: String,
        #[prost(string, tag = "3")]
        namespace: String,
        #[prost(uint32, tag = "4")]
        attempt: u32,
    }
    PodSandboxConfig {
        #[prost(message, optional, tag = "1")]
        metadata: Option<PodSandboxMetadata>,
        #[prost(string, tag = "2")]
        hostname: String,
        #[prost(string, tag = "3")]
        log_directory: String,
        #[prost(message, repeated, tag = "5")]
        port_mappings: Vec<PortMapping>,
        #[prost(btree_map = "string, string", tag = "6")]
        labels: BTreeMap<String, String>,
        #[prost(btree_map = "string, string", tag = "7")]
        annotations: BTreeMap<String, String>,
        #[prost(message, optional, tag = "8")]
        linux: Option<LinuxPodSandboxConfig>,
    }
    PortMapping {
        #[prost(int32, tag = "1")]
        protocol: i32,
        #[prost(int32, tag = "2")]
        container_port: i32,
        #[prost(int32, tag = "3")]
        host_port: i32,
        #[prost(string, tag = "4")]
        host_ip: String,
    }
    LinuxPodSandboxConfig {
        #[prost(message, optional, tag = "2")]
        security_context: Option<LinuxSandboxSecurityContext>,
    }
    LinuxSandboxSecurityContext {
        #[prost(message, optional, tag = "1")]
        namespace_options: Option<NamespaceOption>,
        #[prost(bool, tag = "6")]
        privileged: bool,
        #[prost(message, optional, tag = "9")]
        seccomp: Option<SecurityProfile>,
    }
    NamespaceOption {
        #[prost(int32, tag = "1")]
        network: i32,
        #[prost(int32, tag = "2")]
        pid: i32,
        #[prost(int32, tag = "3")]
        ipc: i32,
    }
    SecurityProfile {
        #[prost(int32, tag = "1")]
        profile_type: i32,
    }
    RunPodSandboxRequest {
        #[prost(message, optional, tag = "1")]
        config: Option<PodSandboxConfig>,
    }
    RunPodSandboxResponse {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
    }
    // Stopping, removing and asking about a sandbox take the same.
    SandboxId {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
        #[prost(bool, tag = "2")]
        verbose: bool,
    }
    PodSandboxStatusResponse {
        #[prost(message, optional, tag = "1")]
        status: Option<PodSandboxStatus>,
        #[prost(btree_map = "string, string", tag = "2")]
        info: BTreeMap<String, String>,
    }
    PodSandboxStatus {
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(int64, tag = "4")]
        created_at: i64,
        #[prost(message, optional, tag = "5")]
        network: Option<PodSandboxNetworkStatus>,
    }
    PodSandboxNetworkStatus {
        #[prost(string, tag = "1")]
        ip: String,
        #[prost(message, repeated, tag = "2")]
        additional_ips: Vec<PodIp>,
    }
    PodIp {
        #[prost(string, tag = "1")]
        ip: String,
    }
    ListPodSandboxRequest {
        #[prost(message, optional, tag = "1")]
        filter: Option<PodSandboxFilter>,
    }
    PodSandboxFilter {
        #[prost(btree_map = "string, string", tag = "3")]
        label_selector: BTreeMap<String, String>,
    }
    ListPodSandboxResponse {
        #[prost(message, repeated, tag = "1")]
        items: Vec<PodSandbox>,
    }
    PodSandbox {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "2")]
        metadata: Option<PodSandboxMetadata>,
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(int64, tag = "4")]
        created_at: i64,
        #[prost(btree_map = "string, string", tag = "6")]
        annotations: BTreeMap<String, String>,
    }

    ImageSpec {
        #[prost(string, tag = "1")]
        image: String,
    }
    ImageStatusRequest {
        #[prost(message, optional, tag = "1")]
        image: Option<ImageSpec>,
    }
    ImageStatusResponse {
        #[prost(message, optional, tag = "1")]
        image: Option<Image>,
    }
    Image {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "5")]
        uid: Option<Int64Value>,
        #[prost(string, tag = "6")]
        username: String,
    }
    Int64Value {
        #[prost(int64, tag = "1")]
        value: i64,
    }
    PullImageRequest {
        #[prost(message, optional, tag = "1")]
        image: Option<ImageSpec>,
        #[prost(message, optional, tag = "3")]
        sandbox_config: Option<PodSandboxConfig>,
    }
    PullImageResponse {
        #[prost(string, tag = "1")]
        image_ref: String,
    }

    ContainerMetadata {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(uint32, tag = "2")]
        attempt: u32,
    }
    KeyValue {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }
    Mount {
        #[prost(string, tag = "1")]
        container_path: String,
        #[prost(string, tag = "2")]
        host_path: String,
        #[prost(bool, tag = "3")]
        readonly: bool,
    }
    ContainerConfig {
        #[prost(message, optional, tag = "1")]
        metadata: Option<ContainerMetadata>,
        #[prost(message, optional, tag = "2")]
        image: Option<ImageSpec>,
        #[prost(string, repeated, tag = "3")]
        command: Vec<String>,
        #[prost(string, repeated, tag = "4")]
        args: Vec<String>,
        #[prost(string, tag = "5")]
        working_dir: String,
        #[prost(message, repeated, tag = "6")]
        envs: Vec<KeyValue>,
        #[prost(message, repeated, tag = "7")]
        mounts: Vec<Mount>,
        #[prost(btree_map = "string, string", tag = "9")]
        labels: BTreeMap<String, String>,
        #[prost(btree_map = "string, string", tag = "10")]
        annotations: BTreeMap<String, String>,
        #[prost(string, tag = "11")]
        log_path: String,
        #[prost(bool, tag = "12")]
        stdin: bool,
        #[prost(bool, tag = "13")]
        stdin_once: bool,
        #[prost(bool, tag = "14")]
        tty: bool,
        #[prost(message, optional, tag = "15")]
        linux: Option<LinuxContainerConfig>,
    }
    LinuxContainerConfig {
        #[prost(message, optional, tag = "1")]
        resources: Option<LinuxContainerResources>,
        #[prost(message, optional, tag = "2")]
        security_context: Option<LinuxContainerSecurityContext>,
    }
    LinuxContainerResources {
        #[prost(int64, tag = "1")]
        cpu_period: i64,
        #[prost(int64, tag = "2")]
        cpu_quota: i64,
        #[prost(int64, tag = "4")]
        memory_limit_in_bytes: i64,
    }
    Capability {
        #[prost(string, repeated, tag = "1")]
        add_capabilities: Vec<String>,
        #[prost(string, repeated, tag = "2")]
        drop_capabilities: Vec<String>,
    }
    LinuxContainerSecurityContext {
        #[prost(message, optional, tag = "1")]
        capabilities: Option<Capability>,
        #[prost(bool, tag = "2")]
        privileged: bool,
        #[prost(message, optional, tag = "3")]
        namespace_options: Option<NamespaceOption>,
        #[prost(message, optional, tag = "5")]
        run_as_user: Option<Int64Value>,
        #[prost(bool, tag = "7")]
        readonly_rootfs: bool,
        #[prost(int64, repeated, tag = "8")]
        supplemental_groups: Vec<i64>,
        #[prost(bool, tag = "11")]
        no_new_privs: bool,
        #[prost(message, optional, tag = "12")]
        run_as_group: Option<Int64Value>,
        #[prost(string, repeated, tag = "13")]
        masked_paths: Vec<String>,
        #[prost(string, repeated, tag = "14")]
        readonly_paths: Vec<String>,
        #[prost(message, optional, tag = "15")]
        seccomp: Option<SecurityProfile>,
    }
    CreateContainerRequest {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
        #[prost(message, optional, tag = "2")]
        config: Option<ContainerConfig>,
        #[prost(message, optional, tag = "3")]
        sandbox_config: Option<PodSandboxConfig>,
    }
    CreateContainerResponse {
        #[prost(string, tag = "1")]
        container_id: String,
    }
    // Starting, removing and reopening the log of a container take the same.
    ContainerIdRequest {
        #[prost(string, tag = "1")]
        container_id: String,
    }
    StopContainerRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(int64, tag = "2")]
        timeout: i64,
    }
    ListContainersRequest {
        #[prost(message, optional, tag = "1")]
        filter: Option<ContainerFilter>,
    }
    ContainerFilter {
        #[prost(btree_map = "string, string", tag = "4")]
        label_selector: BTreeMap<String, String>,
    }
    ListContainersResponse {
        #[prost(message, repeated, tag = "1")]
        containers: Vec<Container>,
    }
    Container {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "3")]
        metadata: Option<ContainerMetadata>,
        #[prost(int32, tag = "6")]
        state: i32,
        #[prost(btree_map = "string, string", tag = "8")]
        labels: BTreeMap<String, String>,
        #[prost(btree_map = "string, string", tag = "9")]
        annotations: BTreeMap<String, String>,
    }
    ContainerStatusRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(bool, tag = "2")]
        verbose: bool,
    }
    ContainerStatusResponse {
        #[prost(message, optional, tag = "1")]
        status: Option<ContainerStatus>,
        #[prost(btree_map = "string, string", tag = "2")]
        info: BTreeMap<String, String>,
    }
    ContainerStatus {
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(int64, tag = "5")]
        started_at: i64,
        #[prost(int64, tag = "6")]
        finished_at: i64,
        #[prost(int32, tag = "7")]
        exit_code: i32,
        #[prost(string, tag = "10")]
        reason: String,
        #[prost(string, tag = "11")]
        message: String,
    }
    ListContainerStatsRequest {
        #[prost(message, optional, tag = "1")]
        filter: Option<ContainerStatsFilter>,
    }
    ContainerStatsFilter {
        #[prost(string, tag = "2")]
        pod_sandbox_id: String,
        #[prost(btree_map = "string, string", tag = "3")]
        label_selector: BTreeMap<String, String>,
    }
    ListContainerStatsResponse {
        #[prost(message, repeated, tag = "1")]
        stats: Vec<ContainerStats>,
    }
    ContainerStats {
        #[prost(message, optional, tag = "1")]
        attributes: Option<ContainerAttributes>,
        #[prost(message, optional, tag = "2")]
        cpu: Option<CpuUsage>,
        #[prost(message, optional, tag = "3")]
        memory: Option<MemoryUsage>,
        #[prost(message, optional, tag = "4")]
        writable_layer: Option<FilesystemUsage>,
    }
    ContainerAttributes {
        #[prost(message, optional, tag = "2")]
        metadata: Option<ContainerMetadata>,
        #[prost(btree_map = "string, string", tag = "3")]
        labels: BTreeMap<String, String>,
    }
    CpuUsage {
        #[prost(int64, tag = "1")]
        timestamp: i64,
        #[prost(message, optional, tag = "2")]
        usage_core_nano_seconds: Option<Amount>,
    }
    MemoryUsage {
        #[prost(message, optional, tag = "2")]
        working_set_bytes: Option<Amount>,
        #[prost(message, optional, tag = "4")]
        usage_bytes: Option<Amount>,
        #[prost(message, optional, tag = "5")]
        rss_bytes: Option<Amount>,
    }
    FilesystemUsage {
        #[prost(message, optional, tag = "3")]
        used_bytes: Option<Amount>,
    }
    Amount {
        #[prost(uint64, tag = "1")]
        value: u64,
    }
    ExecSyncRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(string, repeated, tag = "2")]
        cmd: Vec<String>,
        #[prost(int64, tag = "3")]
        timeout: i64,
    }
    ExecSyncResponse {
        #[prost(bytes = "vec", tag = "1")]
        stdout: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        stderr: Vec<u8>,
        #[prost(int32, tag = "3")]
        exit_code: i32,
    }

    StreamingExecRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(string, repeated, tag = "2")]
        cmd: Vec<String>,
        #[prost(bool, tag = "3")]
        tty: bool,
        #[prost(bool, tag = "4")]
        stdin: bool,
        #[prost(bool, tag = "5")]
        stdout: bool,
        #[prost(bool, tag = "6")]
        stderr: bool,
    }
    AttachRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(bool, tag = "2")]
        stdin: bool,
        #[prost(bool, tag = "3")]
        tty: bool,
        #[prost(bool, tag = "4")]
        stdout: bool,
        #[prost(bool, tag = "5")]
        stderr: bool,
    }
    // Both are answered with where the streams are.
    StreamsResponse {
        #[prost(string, tag = "1")]
        url: String,
    }

    // What happened to a container or a sandbox.
    ContainerEvent {
        #[prost(string, tag = "1")]
        container_id: String,
    }

    // What containerd says by itself, on the same socket.
    SubscribeRequest {
        #[prost(string, repeated, tag = "1")]
        filters: Vec<String>,
    }
    Envelope {
        #[prost(message, optional, tag = "4")]
        event: Option<Any>,
    }
    Any {
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }
    TaskExit {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(string, tag = "2")]
        id: String,
    }
}
