//! The messages of etcd's API v3 that a store needs, with the field numbers of etcd's `rpc.proto` and `kv.proto`.
//!
//! Fields that are not set or read here are left out: they keep etcd's defaults. One of several fields is as a field
//! that may be missing.

use prost::Message;

/// Messages: each field has its type in a proto before its name.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* [$($proto:tt)*] $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[$doc])* #[prost($($proto)*)] pub(crate) $field: $type,)*
        }
    )*};
}

messages! {
    /// A key with its value and numbers.
    KeyValue {
        [bytes = "vec", tag = "1"] key: Vec<u8>,
        [int64, tag = "3"] mod_revision: i64,
        [bytes = "vec", tag = "5"] value: Vec<u8>,
        /// The lease with which it ends, or 0.
        [int64, tag = "6"] lease: i64,
    }
    ResponseHeader {
        [int64, tag = "3"] revision: i64,
    }
    RangeRequest {
        [bytes = "vec", tag = "1"] key: Vec<u8>,
        /// The first key behind the range; empty for one key.
        [bytes = "vec", tag = "2"] range_end: Vec<u8>,
        /// Whether only the number of keys is wanted.
        [bool, tag = "9"] count_only: bool,
    }
    RangeResponse {
        [message, optional, tag = "1"] header: Option<ResponseHeader>,
        [message, repeated, tag = "2"] kvs: Vec<KeyValue>,
        [int64, tag = "4"] count: i64,
    }
    PutRequest {
        [bytes = "vec", tag = "1"] key: Vec<u8>,
        [bytes = "vec", tag = "2"] value: Vec<u8>,
        [int64, tag = "3"] lease: i64,
    }
    PutResponse {}
    DeleteRangeRequest {
        [bytes = "vec", tag = "1"] key: Vec<u8>,
    }
    DeleteRangeResponse {}
    /// A request, in the field of its kind.
    RequestOp {
        [message, optional, tag = "1"] range: Option<RangeRequest>,
        [message, optional, tag = "2"] put: Option<PutRequest>,
    }
    ResponseOp {
        [message, optional, tag = "1"] range: Option<RangeResponse>,
    }
    /// A condition that compares a number of a key.
    Compare {
        /// EQUAL is 0.
        [int32, tag = "1"] result: i32,
        /// CREATE is 1.
        [int32, tag = "2"] target: i32,
        [bytes = "vec", tag = "3"] key: Vec<u8>,
        /// The revision that made it; 0 for a key that does not exist.
        [int64, optional, tag = "5"] create_revision: Option<i64>,
    }
    TxnRequest {
        [message, repeated, tag = "1"] compare: Vec<Compare>,
        [message, repeated, tag = "2"] success: Vec<RequestOp>,
        [message, repeated, tag = "3"] failure: Vec<RequestOp>,
    }
    TxnResponse {
        [message, optional, tag = "1"] header: Option<ResponseHeader>,
        [bool, tag = "2"] succeeded: bool,
        [message, repeated, tag = "3"] responses: Vec<ResponseOp>,
    }
    WatchRequest {
        [message, optional, tag = "1"] create: Option<WatchCreateRequest>,
    }
    WatchCreateRequest {
        [bytes = "vec", tag = "1"] key: Vec<u8>,
        [bytes = "vec", tag = "2"] range_end: Vec<u8>,
        /// The first revision to report.
        [int64, tag = "3"] start_revision: i64,
        /// The changes not to report: NOPUT is 0, NODELETE 1.
        [int32, repeated, tag = "5"] filters: Vec<i32>,
    }
    WatchResponse {
        [bool, tag = "4"] canceled: bool,
        [message, repeated, tag = "11"] events: Vec<Event>,
    }
    Event {}
    LeaseGrantRequest {
        /// The length in seconds.
        [int64, tag = "1"] ttl: i64,
    }
    LeaseGrantResponse {
        [int64, tag = "2"] id: i64,
        [int64, tag = "3"] ttl: i64,
        [string, tag = "4"] error: String,
    }
    LeaseRevokeRequest {
        [int64, tag = "1"] id: i64,
    }
    LeaseRevokeResponse {}
    LeaseKeepAliveRequest {
        [int64, tag = "1"] id: i64,
    }
    LeaseKeepAliveResponse {
        /// The length in seconds; 0 if the lease has ended.
        [int64, tag = "3"] ttl: i64,
    }
    AuthenticateRequest {
        [string, tag = "1"] name: String,
        [string, tag = "2"] password: String,
    }
    AuthenticateResponse {
        [string, tag = "2"] token: String,
    }
    StatusRequest {}
    StatusResponse {
        [string, tag = "2"] version: String,
    }
}
