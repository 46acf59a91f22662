//! Which numbers does the kernel use? (From `linux/netfilter/nf_tables.h`, which keeps them for ever.)

/// The nf_tables subsystem, in the high byte of every message type.
pub const SUBSYSTEM: u16 = 10;

/// Message types within the subsystem.
pub mod msg {
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub const DEL_TABLE: u16 = 2;
    pub const NEW_CHAIN: u16 = 3;
    pub const GET_CHAIN: u16 = 4;
    pub const DEL_CHAIN: u16 = 5;
    pub const NEW_RULE: u16 = 6;
    pub const GET_RULE: u16 = 7;
    pub const DEL_RULE: u16 = 8;
    pub const NEW_SET: u16 = 9;
    pub const GET_SET: u16 = 10;
    pub const DEL_SET: u16 = 11;
    pub const NEW_ELEMENTS: u16 = 12;
    pub const GET_ELEMENTS: u16 = 13;
    pub const DEL_ELEMENTS: u16 = 14;
    pub const NEW_GENERATION: u16 = 15;
    pub const GET_GENERATION: u16 = 16;
}

pub const BATCH_GENID: u16 = 1;
pub const LIST_ELEM: u16 = 1;
pub const GEN_ID: u16 = 1;

pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const USERDATA: u16 = 6;
}

pub mod chain {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    pub const USERDATA: u16 = 12;
    pub const HOOK_NUM: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
}

pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LEN: u16 = 5;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LEN: u16 = 7;
    pub const DESC: u16 = 9;
    pub const ID: u16 = 10;
    pub const TIMEOUT: u16 = 11;
    pub const USERDATA: u16 = 13;
    pub const DESC_SIZE: u16 = 1;
    pub const DESC_CONCAT: u16 = 2;
    pub const FIELD_LEN: u16 = 1;
    pub const VERDICT_TYPE: u32 = 0xffff_ff00;
}

pub mod element {
    pub const LIST_TABLE: u16 = 1;
    pub const LIST_SET: u16 = 2;
    pub const LIST_ELEMENTS: u16 = 3;
    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const EXPIRATION: u16 = 5;
    pub const USERDATA: u16 = 6;
    pub const KEY_END: u16 = 10;
    pub const FLAG_INTERVAL_END: u32 = 1;
}

pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
}

pub mod expr {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;
}
