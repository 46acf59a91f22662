//! How are instructions written and read?

use super::data_wire::{decode_name, decode_value, decode_verdict, encode_value, encode_verdict};
use super::expr::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupTarget, MetaKey, NatKind,
    PayloadBase, RangeOp, Register, RejectKind,
};
use super::name::Family;
use super::wire;
use crate::netlink::{Attribute, Attributes, Malformed, Writer};

impl Expr {
    /// Writes the instruction as one attribute of a rule's list.
    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.nest(wire::LIST_ELEM, |elem| {
            elem.text(wire::expr::NAME, self.kernel_name());
            match self {
                Self::Other { attributes, .. } => {
                    elem.bytes_attribute(wire::expr::DATA | 1 << 15, attributes)
                }
                _ => elem.nest(wire::expr::DATA, |data| self.encode_operands(data)),
            }
        });
    }

    /// The name the kernel knows the instruction by.
    pub fn kernel_name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Load { .. } | Self::Verdict(_) => "immediate",
            Self::Numgen { .. } => "numgen",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Fib { .. } => "fib",
            Self::Counter { .. } => "counter",
            Self::Reject { .. } => "reject",
            Self::Dynset { .. } => "dynset",
            Self::Other { name, .. } => name,
        }
    }

    fn encode_operands(&self, w: &mut Writer) {
        match self {
            Self::Payload {
                dreg,
                base,
                offset,
                len,
            } => {
                w.u32_be(1, dreg.number());
                w.u32_be(2, base.number());
                w.u32_be(3, *offset);
                w.u32_be(4, *len);
            }
            Self::Meta { dreg, key } => {
                w.u32_be(2, key.number());
                w.u32_be(1, dreg.number());
            }
            Self::MetaSet { sreg, key } => {
                w.u32_be(2, key.number());
                w.u32_be(3, sreg.number());
            }
            Self::Ct { dreg, key, direction } => {
                w.u32_be(2, key.number());
                w.u32_be(1, dreg.number());
                if let Some(direction) = direction {
                    w.u8(3, direction.number() as u8);
                }
            }
            Self::Cmp { sreg, op, value } => {
                w.u32_be(1, sreg.number());
                w.u32_be(2, op.number());
                encode_value(w, 3, value);
            }
            Self::Range { sreg, op, from, to } => {
                w.u32_be(1, sreg.number());
                w.u32_be(2, op.number());
                encode_value(w, 3, from);
                encode_value(w, 4, to);
            }
            Self::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            } => {
                w.u32_be(1, sreg.number());
                w.u32_be(2, dreg.number());
                w.u32_be(3, mask.len() as u32);
                encode_value(w, 4, mask);
                encode_value(w, 5, xor);
            }
            Self::Load { dreg, value } => {
                w.u32_be(1, dreg.number());
                encode_value(w, 2, value);
            }
            Self::Verdict(verdict) => {
                w.u32_be(1, 0);
                encode_verdict(w, 2, verdict);
            }
            Self::Numgen {
                dreg,
                modulus,
                random,
                offset,
            } => {
                w.u32_be(1, dreg.number());
                w.u32_be(2, *modulus);
                w.u32_be(3, u32::from(*random));
                w.u32_be(4, *offset);
            }
            _ => self.encode_statement(w),
        }
    }

    fn encode_statement(&self, w: &mut Writer) {
        match self {
            Self::Lookup {
                set,
                sreg,
                target,
                invert,
            } => {
                w.text(1, set.as_str());
                w.u32_be(2, sreg.number());
                match target {
                    LookupTarget::Membership => {}
                    LookupTarget::Data(dreg) => w.u32_be(3, dreg.number()),
                    LookupTarget::Verdict => w.u32_be(3, 0),
                }
                if *invert {
                    w.u32_be(5, 1);
                }
            }
            Self::Nat {
                kind,
                family,
                address,
                port,
                flags,
            } => {
                w.u32_be(1, kind.number());
                w.u32_be(2, u32::from(family.number()));
                if let Some(register) = address {
                    w.u32_be(3, register.number());
                }
                if let Some(register) = port {
                    w.u32_be(5, register.number());
                }
                if *flags != 0 {
                    w.u32_be(7, *flags);
                }
            }
            Self::Masquerade { flags } if *flags != 0 => w.u32_be(1, *flags),
            Self::Fib { dreg, result, flags } => {
                w.u32_be(1, dreg.number());
                w.u32_be(2, result.number());
                w.u32_be(3, flags.0);
            }
            Self::Counter { packets, bytes } => {
                w.u64_be(1, *bytes);
                w.u64_be(2, *packets);
            }
            Self::Reject { kind, code } => {
                w.u32_be(1, kind.number());
                w.u8(2, *code);
            }
            Self::Dynset {
                set,
                op,
                key,
                data,
                timeout_ms,
            } => {
                w.text(1, set.as_str());
                w.u32_be(3, op.number());
                w.u32_be(4, key.number());
                if let Some(data) = data {
                    w.u32_be(5, data.number());
                }
                if let Some(timeout) = timeout_ms {
                    w.u64_be(6, *timeout);
                }
            }
            _ => {}
        }
    }

    /// Reads one attribute of a rule's list.
    pub fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut name = None;
        let mut operands: &[u8] = &[];
        for part in attribute.nested() {
            let part = part?;
            match part.kind {
                wire::expr::NAME => name = Some(part.text()?),
                wire::expr::DATA => operands = part.value,
                _ => {}
            }
        }
        let name = name.ok_or(Malformed("an expression without a name"))?;
        let fields = Operands::read(operands)?;
        Ok(fields.decode(name)?.unwrap_or_else(|| Self::Other {
            name: name.into(),
            attributes: operands.into(),
        }))
    }
}

/// The attributes of one instruction by number.
struct Operands<'a> {
    by_kind: [Option<Attribute<'a>>; 8],
}

impl<'a> Operands<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut by_kind = [None; 8];
        for attribute in Attributes::new(bytes) {
            let attribute = attribute?;
            if let Some(slot) = by_kind.get_mut(usize::from(attribute.kind)) {
                *slot = Some(attribute);
            }
        }
        Ok(Self { by_kind })
    }

    /// `None` if the instruction, or the use it is put to here, is not one of ours.
    fn decode(&self, name: &str) -> Result<Option<Expr>, Malformed> {
        Ok(match name {
            "payload" if self.has(1) => self.payload()?,
            "meta" if self.has(3) => self.meta_set()?,
            "meta" => self.meta()?,
            "ct" if self.has(1) => self.ct()?,
            "cmp" => self.cmp()?,
            "range" => self.range()?,
            "bitwise" if self.has(4) && self.has(5) => self.bitwise()?,
            "lookup" => self.lookup()?,
            "immediate" => self.immediate()?,
            "numgen" => self.numgen()?,
            "nat" => self.nat()?,
            "masq" if !self.has(2) => Some(Expr::Masquerade {
                flags: self.number_or(1, 0)?,
            }),
            "fib" => self.fib()?,
            "counter" => Some(Expr::Counter {
                bytes: self.at(1)?.u64_be()?,
                packets: self.at(2)?.u64_be()?,
            }),
            "reject" => RejectKind::from_number(self.number(1)?).map(|kind| Expr::Reject {
                kind,
                code: self.by_kind[2].and_then(|code| code.u8().ok()).unwrap_or(0),
            }),
            "dynset" => self.dynset()?,
            _ => None,
        })
    }

    fn has(&self, kind: usize) -> bool {
        self.by_kind[kind].is_some()
    }

    fn at(&self, kind: usize) -> Result<Attribute<'a>, Malformed> {
        self.by_kind[kind].ok_or(Malformed("an expression lacks an operand"))
    }

    fn number(&self, kind: usize) -> Result<u32, Malformed> {
        self.at(kind)?.u32_be()
    }

    fn number_or(&self, kind: usize, default: u32) -> Result<u32, Malformed> {
        self.by_kind[kind].map_or(Ok(default), |attribute| attribute.u32_be())
    }

    fn register(&self, kind: usize) -> Result<Register, Malformed> {
        Register::from_number(self.number(kind)?).ok_or(Malformed("no such register"))
    }

    fn optional_register(&self, kind: usize) -> Result<Option<Register>, Malformed> {
        if self.has(kind) {
            self.register(kind).map(Some)
        } else {
            Ok(None)
        }
    }

    fn payload(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, offset, len) = (self.register(1)?, self.number(3)?, self.number(4)?);
        Ok(
            PayloadBase::from_number(self.number(2)?).map(|base| Expr::Payload {
                dreg,
                base,
                offset,
                len,
            }),
        )
    }

    fn meta(&self) -> Result<Option<Expr>, Malformed> {
        let dreg = self.register(1)?;
        Ok(MetaKey::from_number(self.number(2)?).map(|key| Expr::Meta { dreg, key }))
    }

    fn meta_set(&self) -> Result<Option<Expr>, Malformed> {
        let sreg = self.register(3)?;
        Ok(MetaKey::from_number(self.number(2)?).map(|key| Expr::MetaSet { sreg, key }))
    }

    fn ct(&self) -> Result<Option<Expr>, Malformed> {
        let dreg = self.register(1)?;
        let direction = match self.by_kind[3] {
            Some(attribute) => CtDirection::from_number(u32::from(attribute.u8()?)),
            None => None,
        };
        Ok(CtKey::from_number(self.number(2)?).map(|key| Expr::Ct { dreg, key, direction }))
    }

    fn cmp(&self) -> Result<Option<Expr>, Malformed> {
        let (sreg, value) = (self.register(1)?, decode_value(&self.at(3)?)?);
        Ok(CmpOp::from_number(self.number(2)?).map(|op| Expr::Cmp { sreg, op, value }))
    }

    fn range(&self) -> Result<Option<Expr>, Malformed> {
        let sreg = self.register(1)?;
        let (from, to) = (decode_value(&self.at(3)?)?, decode_value(&self.at(4)?)?);
        Ok(RangeOp::from_number(self.number(2)?).map(|op| Expr::Range { sreg, op, from, to }))
    }

    fn bitwise(&self) -> Result<Option<Expr>, Malformed> {
        let (sreg, dreg) = (self.register(1)?, self.register(2)?);
        let (mask, xor) = (decode_value(&self.at(4)?)?, decode_value(&self.at(5)?)?);
        // The kernel repeats the length; a mask of another length is not one we could write again.
        let consistent = self.number(3)? as usize == mask.len() && mask.len() == xor.len();
        Ok(
            (consistent && self.number_or(6, 0)? == 0).then_some(Expr::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            }),
        )
    }

    fn lookup(&self) -> Result<Option<Expr>, Malformed> {
        let set = decode_name(&self.at(1)?)?;
        let sreg = self.register(2)?;
        let target = match self.by_kind[3] {
            None => LookupTarget::Membership,
            Some(dreg) if dreg.u32_be()? == 0 => LookupTarget::Verdict,
            Some(_) => LookupTarget::Data(self.register(3)?),
        };
        let flags = self.number_or(5, 0)?;
        Ok((flags <= 1).then_some(Expr::Lookup {
            set,
            sreg,
            target,
            invert: flags == 1,
        }))
    }

    fn immediate(&self) -> Result<Option<Expr>, Malformed> {
        let data = self.at(2)?;
        if self.number(1)? == 0 {
            Ok(decode_verdict(&data)?.map(Expr::Verdict))
        } else {
            Ok(Some(Expr::Load {
                dreg: self.register(1)?,
                value: decode_value(&data)?,
            }))
        }
    }

    fn numgen(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, modulus, offset) = (self.register(1)?, self.number(2)?, self.number_or(4, 0)?);
        let random = match self.number(3)? {
            0 => false,
            1 => true,
            _ => return Ok(None),
        };
        Ok(Some(Expr::Numgen {
            dreg,
            modulus,
            random,
            offset,
        }))
    }

    fn nat(&self) -> Result<Option<Expr>, Malformed> {
        let Ok(family) = u8::try_from(self.number(2)?) else {
            return Err(Malformed("no such family"));
        };
        let (address, port) = (self.optional_register(3)?, self.optional_register(5)?);
        // The kernel fills in the ends of ranges; a range that is more than one value is not ours.
        let single = |end: Option<Register>, start| end.is_none() || end == start;
        if !single(self.optional_register(4)?, address) || !single(self.optional_register(6)?, port) {
            return Ok(None);
        }
        // The two lowest bits say that an address and a port are given, which we know.
        let flags = self.number_or(7, 0)? & !3;
        let kind = NatKind::from_number(self.number(1)?);
        Ok(kind
            .zip(Family::from_number(family))
            .map(|(kind, family)| Expr::Nat {
                kind,
                family,
                address,
                port,
                flags,
            }))
    }

    fn fib(&self) -> Result<Option<Expr>, Malformed> {
        let (dreg, flags) = (self.register(1)?, FibFlags(self.number(3)?));
        Ok(FibResult::from_number(self.number(2)?).map(|result| Expr::Fib { dreg, result, flags }))
    }

    fn dynset(&self) -> Result<Option<Expr>, Malformed> {
        if self.has(7) {
            // Elements with expressions of their own are not ours.
            return Ok(None);
        }
        let (set, key) = (decode_name(&self.at(1)?)?, self.register(4)?);
        let data = self.optional_register(5)?;
        // The kernel reports a timeout of zero for operations without one.
        let timeout_ms = match self.by_kind[6] {
            Some(timeout) => Some(timeout.u64_be()?).filter(|timeout| *timeout != 0),
            None => None,
        };
        Ok(DynsetOp::from_number(self.number(3)?).map(|op| Expr::Dynset {
            set,
            op,
            key,
            data,
            timeout_ms,
        }))
    }
}
