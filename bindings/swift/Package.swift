// swift-tools-version:5.10
import Foundation
import PackageDescription

// On Apple systems the library comes in an XCFramework, which `xcframework.sh` makes. Elsewhere, and
// for tests, it is a shared library: `swift test -Xlinker -L<folder>`.
let isShared = ProcessInfo.processInfo.environment["LAPIDARY_SHARED"] != nil
#if os(Linux)
let isLinux = true
#else
let isLinux = false
#endif

let library: Target = isLinux || isShared
    ? .systemLibrary(name: "LapidaryFFI", path: "Sources/LapidaryFFI")
    : .binaryTarget(name: "LapidaryFFI", path: "LapidaryFFI.xcframework")

let package = Package(
    name: "Lapidary",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [.library(name: "Lapidary", targets: ["Lapidary"])],
    targets: [
        library,
        .target(
            name: "Lapidary",
            dependencies: ["LapidaryFFI"],
            linkerSettings: [
                .linkedFramework("Metal", .when(platforms: [.iOS, .macOS])),
                .linkedFramework("QuartzCore", .when(platforms: [.iOS, .macOS])),
                .linkedFramework("Foundation", .when(platforms: [.iOS, .macOS])),
            ]
        ),
        .testTarget(name: "LapidaryTests", dependencies: ["Lapidary"]),
    ]
)

// The first example of docs/swift.md, which is put here to be run.
if ProcessInfo.processInfo.environment["LAPIDARY_EXAMPLE"] != nil {
    package.targets.append(.executableTarget(name: "Example", dependencies: ["Lapidary"]))
}
