//! Messages on the wire: questions are encoded, answers stay bytes, so that what a node gave is kept as it came.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes `Q`; decodes nothing.
#[derive(Debug)]
pub(super) struct Plain<Q>(PhantomData<Q>);

impl<Q> Default for Plain<Q> {
    fn default() -> Self {
        Plain(PhantomData)
    }
}

impl<Q: Message + 'static> Codec for Plain<Q> {
    type Encode = Q;
    type Decode = Bytes;
    type Encoder = Plain<Q>;
    type Decoder = Plain<Q>;

    fn encoder(&mut self) -> Plain<Q> {
        Plain::default()
    }

    fn decoder(&mut self) -> Plain<Q> {
        Plain::default()
    }
}

impl<Q: Message> Encoder for Plain<Q> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, question: Q, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        question.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Q> Decoder for Plain<Q> {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
