//! Congestion control of network flows: windows (DCTCP, D2TCP, QTCP), rates (DCQCN, QRDMA), and the
//! quality factor by which flows are compared.

pub mod d2tcp;
pub mod dcqcn;
pub mod dctcp;
pub mod qrdma;
pub mod qtcp;
pub mod quality;
