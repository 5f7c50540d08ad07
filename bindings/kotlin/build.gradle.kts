// The library for Android. `android.sh` puts the shared libraries into build/jniLibs first.
// The project's own tests do not use Gradle: `cargo xtask bindings --kotlin` does.
plugins {
    id("com.android.library") version "8.13.0"
    id("org.jetbrains.kotlin.android") version "2.4.20"
    `maven-publish`
}

group = "rs.lapidary"
version = "0.1.0"

android {
    namespace = "rs.lapidary"
    compileSdk = 36
    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
    }
    sourceSets["main"].apply {
        java.srcDirs("src/main/kotlin", "src/main/generated")
        jniLibs.srcDirs("build/jniLibs")
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
    publishing { singleVariant("release") { withSourcesJar() } }
}

kotlin { jvmToolchain(17) }

dependencies {
    implementation("net.java.dev.jna:jna:5.13.0@aar")
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core:1.10.2")
    testImplementation(kotlin("test-junit"))
}
