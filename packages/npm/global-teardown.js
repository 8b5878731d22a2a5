'use strict'
// For globalTeardown of Jest.

module.exports = () => globalThis.__LOCKKEEPER_STOP__()
