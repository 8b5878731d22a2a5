'use strict'
// A lock, by ZooKeeper's recipe: the first of the ephemeral and sequential children of a znode holds it.

const { basename } = require('node:path')
const { promisify } = require('node:util')
const { CreateMode } = require('node-zookeeper-client')

// lock waits until the client has the lock, and returns its token, which only grows from holder to
// holder: the czxid of the client's znode.
async function lock(client, path) {
  const call = (method, ...args) => promisify(client[method]).call(client, ...args)
  await call('mkdirp', path)
  const mine = await call('create', `${path}/lock-`, CreateMode.EPHEMERAL_SEQUENTIAL)
  for (;;) {
    const queue = (await promisify(done => client.getChildren(path, done))()).sort()
    const place = queue.indexOf(basename(mine))
    if (place === 0) return (await call('exists', mine)).czxid.readBigInt64BE()
    await gone(client, `${path}/${queue[place - 1]}`)
  }
}

// gone waits until something happens to a znode, or it does not exist.
function gone(client, path) {
  return new Promise((resolve, reject) => {
    client.exists(path, resolve, (error, stat) => {
      if (error) reject(error)
      else if (!stat) resolve()
    })
  })
}

module.exports = { lock }
