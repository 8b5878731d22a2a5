'use strict'
// One process for many tests, each with a server of its own in it.

const { Lockkeeper, begin, dead } = require('../index.js')

const variable = 'LOCKKEEPER_TEST_URL' // which global-setup.js sets

let own // the process of this process, if global-setup.js did not start one

// fresh starts a server that nobody else has. Options that only a process can have start one.
async function fresh(options = {}) {
  if (['args', 'binary', 'logLevel', 'port'].some(name => options[name] !== undefined)) return Lockkeeper.start(options)
  if (process.env[variable]) return (await Lockkeeper.attach(process.env[variable])).newServer(options)
  own ??= Lockkeeper.start()
  if ((await own)[dead]) own = Lockkeeper.start() // in a test before, which fails
  return (await own).newServer(options)
}

// finish ends a test, which fails if check does, with what there is on the server. If the test has failed already,
// print gets that, since its runner may show nothing but the first failure.
async function finish(zk, failed, print, end) {
  const failures = []
  const attempt = step => step().catch(({ message }) => failures.push(message))
  await attempt(() => zk.check())
  if (failed || failures.length) {
    const report = await zk.report().catch(error => failures.length ? '' : error.message) // a check says this, too
    if (report) failures.push(report)
  }
  if (failed) print(failures.splice(0).join('\n'))
  await attempt(end)
  if (failures.length) throw new Error(failures.join('\n'))
}

module.exports = { fresh, finish, begin, dead, variable }
