//! How fast a flow may send: congestion control of windows (DCTCP, D2TCP, QTCP) and of rates
//! (DCQCN, QRDMA), and how well a flow fares.

pub mod d2tcp;
pub mod dcqcn;
pub mod dctcp;
pub mod qrdma;
pub mod qtcp;
pub mod quality;
