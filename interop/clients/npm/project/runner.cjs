'use strict'
// Starts servers in both ways, prints their processes, and does not end.

const { Lockkeeper } = require('lockkeeper')
const { withLockkeeper } = require('lockkeeper/node-test')

Promise.all([Lockkeeper.start({ cluster: 3 }), withLockkeeper({ after() {} })]).then(servers => {
  console.log(servers.map(server => server.pid).join(' '))
  setInterval(() => {}, 1000)
})
