export * from './jest.js'
