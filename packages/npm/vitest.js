'use strict'
// For Vitest: const test = base.extend({ zk: lockkeeper() }).

const { fresh } = require('./lib/shared.js')

function lockkeeper(options) {
  // Vitest reads the names of the fixtures that it needs in the first parameter: none.
  return async ({}, use) => {
    const zk = await fresh(options)
    try {
      await use(zk)
    } finally {
      await zk.stop()
    }
  }
}

module.exports = { lockkeeper }
