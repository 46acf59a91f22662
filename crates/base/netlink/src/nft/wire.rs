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
    /// Only read, and only from newer kernels.
    pub const COUNT: u16 = 20;
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
    pub const FLAG_CATCH_ALL: u32 = 2;
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
    /// No expression of ours has an attribute above this one.
    pub const MAX_OPERAND: u16 = 7;
}

pub mod payload {
    pub const DREG: u16 = 1;
    pub const BASE: u16 = 2;
    pub const OFFSET: u16 = 3;
    pub const LEN: u16 = 4;
}

pub mod meta {
    pub const DREG: u16 = 1;
    pub const KEY: u16 = 2;
    pub const SREG: u16 = 3;
}

pub mod ct {
    pub const DREG: u16 = 1;
    pub const KEY: u16 = 2;
    pub const DIRECTION: u16 = 3;
}

pub mod cmp {
    pub const SREG: u16 = 1;
    pub const OP: u16 = 2;
    pub const DATA: u16 = 3;
}

pub mod range {
    pub const SREG: u16 = 1;
    pub const OP: u16 = 2;
    pub const FROM: u16 = 3;
    pub const TO: u16 = 4;
}

pub mod bitwise {
    pub const SREG: u16 = 1;
    pub const DREG: u16 = 2;
    pub const LEN: u16 = 3;
    pub const MASK: u16 = 4;
    pub const XOR: u16 = 5;
    pub const OP: u16 = 6;
}

pub mod lookup {
    pub const SET: u16 = 1;
    pub const SREG: u16 = 2;
    pub const DREG: u16 = 3;
    pub const FLAGS: u16 = 5;
    pub const FLAG_INVERT: u32 = 1;
}

pub mod immediate {
    pub const DREG: u16 = 1;
    pub const DATA: u16 = 2;
}

pub mod numgen {
    pub const DREG: u16 = 1;
    pub const MODULUS: u16 = 2;
    pub const TYPE: u16 = 3;
    pub const OFFSET: u16 = 4;
}

pub mod nat {
    pub const TYPE: u16 = 1;
    pub const FAMILY: u16 = 2;
    pub const REG_ADDR_MIN: u16 = 3;
    pub const REG_ADDR_MAX: u16 = 4;
    pub const REG_PROTO_MIN: u16 = 5;
    pub const REG_PROTO_MAX: u16 = 6;
    pub const FLAGS: u16 = 7;
    /// The flags by which the kernel says that an address and a port are given.
    pub const FLAGS_GIVEN: u32 = 3;
}

pub mod masq {
    pub const FLAGS: u16 = 1;
    pub const REG_PROTO_MIN: u16 = 2;
}

pub mod fib {
    pub const DREG: u16 = 1;
    pub const RESULT: u16 = 2;
    pub const FLAGS: u16 = 3;
}

pub mod counter {
    pub const BYTES: u16 = 1;
    pub const PACKETS: u16 = 2;
}

pub mod reject {
    pub const TYPE: u16 = 1;
    pub const ICMP_CODE: u16 = 2;
}

pub mod dynset {
    pub const SET_NAME: u16 = 1;
    pub const OP: u16 = 3;
    pub const SREG_KEY: u16 = 4;
    pub const SREG_DATA: u16 = 5;
    pub const TIMEOUT: u16 = 6;
    pub const EXPR: u16 = 7;
}

/// The number for the verdict where a register is expected.
pub const VERDICT_REGISTER: u32 = 0;
/// The bit of an attribute's kind that says that it is a list of attributes.
pub const NESTED: u16 = 1 << 15;
