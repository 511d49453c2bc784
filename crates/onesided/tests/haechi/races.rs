//! The races between clients and monitor, one test each. Each fails if what solves it is taken out.

mod clients;
mod monitors;
mod tokens;
