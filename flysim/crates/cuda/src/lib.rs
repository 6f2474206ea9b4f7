// SPDX-License-Identifier: Apache-2.0
//! The NVIDIA backend of flysim.
